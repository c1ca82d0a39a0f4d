"""The one-machine node: sandboxes from Linux namespaces, made by one process, and the images they are made of."""
