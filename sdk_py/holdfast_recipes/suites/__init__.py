"""Evaluation suites: published benchmarks with the same agents, the same table and the same way to go on after an end.

Others import ``registry`` (``SUITES``), ``playing`` (``play``) and ``results`` (``Result``, ``table``).
"""
