"""Browser tasks (P §4). So far the pure parts: ``coordinates``, ``observation`` and ``reward``."""
