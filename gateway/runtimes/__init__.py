"""Runtimes: what creates sandboxes. ``base`` is the interface, ``local`` is one machine's node, ``kubernetes`` a cluster."""
