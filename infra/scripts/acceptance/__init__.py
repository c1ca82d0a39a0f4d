"""Tests a deployment on the cluster that kubectl reaches: `python -m infra.scripts.acceptance --help`."""
