"""Tunnels: TCP connections to ports inside the sandbox."""
