"""The start of an agent: the server, its table of handlers, and the modules that are imported in advance."""
