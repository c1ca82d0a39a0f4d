"""Runtimes: where sandboxes are made. ``base`` is the interface, ``local`` one machine's node."""
