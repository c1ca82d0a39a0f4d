"""Tests a deployment through the SDK: `python -m infra.scripts.smoke --help`."""
