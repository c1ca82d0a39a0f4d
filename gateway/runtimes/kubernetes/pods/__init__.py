"""Pods of sandboxes: manifest, creation, adoption of spares, and what their status and events mean."""
