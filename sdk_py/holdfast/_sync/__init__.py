# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The synchronous SDK, generated from ``holdfast._async`` by ``infra/scripts/generate_sync.py``."""
