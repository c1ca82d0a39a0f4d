"""Software-engineering tasks (P §3): rows of published task sets, grading, and tasks made from any library with tests.

Pure: ``sources`` and ``images`` (rows → tasks), ``grading`` and ``reports`` (test output → verdict), ``leaks``, ``screening``, ``mutation``
and ``issues`` (tasks by mutation). In sandboxes: ``workspace`` (start state, capture, tests), ``job`` (one task to roll out and grade),
``validation`` (can a task be used), ``factory`` with ``projects`` and ``archives`` (tasks from source distributions), ``bare`` (the same
without sandboxes) and ``equivalence`` (both compared).
"""
