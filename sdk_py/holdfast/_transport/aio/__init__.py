"""The transport on one asyncio event loop. ``threads`` has the same names for the blocking API."""
