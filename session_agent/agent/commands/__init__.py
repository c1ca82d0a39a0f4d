"""One-off commands, terminals and the entrypoint of the image."""
