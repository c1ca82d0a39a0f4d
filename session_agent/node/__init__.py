"""The node of one machine: one process that creates sandboxes from Linux namespaces and stores their images."""
