"""Software-engineering tasks (P §3): rows of published task sets, grading, and tasks made from any library with tests.

So far the pure parts: ``sources`` and ``images`` (rows → tasks), ``grading`` and ``reports`` (test output → verdict), ``leaks``,
``screening``, ``mutation`` and ``issues`` (tasks by mutation).
"""
