"""Tunnels to what listens inside the sandbox."""
