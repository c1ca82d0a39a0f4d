"""Load shapes, one per file, as locust wants them: ``-f loadtest/locustfile.py,loadtest/shapes/spike.py``.

``base`` has what they share. All read locust's own ``--users`` (the peak) and ``--run-time``.
"""
