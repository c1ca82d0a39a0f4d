"""The asynchronous API of the SDK, written by hand. ``infra/scripts/generate_sync.py`` generates the blocking API, ``_sync``, from it."""
