"""Connections to session agents: dialling with mutual proof of identity, adoption of spares, idle times, and the requests of REST.

Owns every message that the gateway itself sends to an agent. Relayed sessions are in ``gateway.sessions``.
"""
