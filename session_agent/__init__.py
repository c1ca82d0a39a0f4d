"""The session agent: the first process of every sandbox. See ``server`` for how it starts."""
