"""Network policies of sandboxes: their manifests, and their creation and collection."""
