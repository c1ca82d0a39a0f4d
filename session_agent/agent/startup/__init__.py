"""What starts an agent: the server, its table of handlers, and what is imported or run ahead."""
