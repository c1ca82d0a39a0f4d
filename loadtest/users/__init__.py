"""The user classes, one per file, on a common base (``base``)."""
