"""The session agent: the first process of a sandbox, which serves the sandbox's clients. ``startup.server`` starts it."""
