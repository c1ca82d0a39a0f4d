"""Images: pulling and importing them, the image store, and the facts about an image that a sandbox needs."""
