"""REST: Holdfast's own API, and the attach of sessions. ``FACE`` is its table of rows; ``schemas/openapi.yaml`` describes it."""

from .rows import FACE as FACE
