"""Load tests of a Holdfast service: locust users on the public SDK, load shapes, thresholds.

``python -m loadtest`` (``make load``) starts locust with ``loadtest/locustfile.py``, and its own stack if ``HOLDFAST_URL`` is not set.
Imports only the public names of ``holdfast``. No module may import ``locust`` before locust itself runs: that import replaces the standard
library's sockets and threads in the whole process (decision 0053).
"""
