"""One of the two faces of the SDK: ``_async`` is written, and ``infra/scripts/generate_sync.py`` generates ``_sync`` from it."""
