"""Connections to session agents: dialling with mutual proof, adoption of a spare, idle time, REST's requests.

Owns everything the gateway says to an agent itself. Relayed sessions are in ``gateway.sessions``.
"""
