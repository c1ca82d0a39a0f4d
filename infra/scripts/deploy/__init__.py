"""Puts Holdfast on a cluster, and keeps its keys: `python -m infra.scripts.deploy --help`."""
