"""Runtimes, which create sandboxes. ``base`` is the interface, ``local`` uses the node of one machine, ``kubernetes`` a cluster."""
