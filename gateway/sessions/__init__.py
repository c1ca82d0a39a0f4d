"""Sessions: the relay of bytes between clients and agents, the registry of attached sessions, and placement tickets.

Bytes are forwarded, never decoded: nothing here may import the session core. ``routes.attach`` sets a session up.
"""
