"""The transport for threads that block. Each module that the asyncio one has too offers the same names."""
