"""The page for people at ``/ui``: its files, the sessions of browsers, and the routes of REST they may use. ``page_face`` makes it."""

from .rows import page_face

__all__ = ["page_face"]
