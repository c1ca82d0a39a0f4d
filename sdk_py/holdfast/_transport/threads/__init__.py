"""The transport of the blocking API. A module that also exists in ``aio`` has the same names here."""
