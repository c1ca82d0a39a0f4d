"""Tasks in Harbor's format (Terminal-Bench 2.0 and others): reading their folders, and playing and grading them in a sandbox.

Others import ``tasks`` (``HarborTask``, ``read``) and ``job`` (``HarborJob``, ``reference``).
"""
