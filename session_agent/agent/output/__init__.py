"""Output and results of commands: reading them from pipes, and keeping them while a client may still request them."""
