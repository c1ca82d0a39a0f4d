"""Load tests of a Holdfast service: locust users on the public SDK, load shapes, thresholds.

``python -m loadtest`` (``make load``) starts locust with ``loadtest/locustfile.py``, and a stack of its own where ``HOLDFAST_URL`` is not
set. Imports the public names of ``holdfast`` alone. Nothing in it may import ``locust`` before locust itself
runs: that import replaces the standard library's sockets and threads in the whole process (decision 0053).
"""
