"""The asynchronous SDK: this is the written one. ``holdfast._sync`` is generated from it by ``infra/scripts/generate_sync.py``."""
