"""The gateway: REST and WebSocket in front of sandboxes, stateless, any number of replicas.

Entry points: ``__main__`` (one replica) and ``controller``. ``app`` has the table of routes, ``service`` the parts of a replica. Imports
point downwards, from entry points to ``model`` (.importlinter); the agent and the SDK are never imported.
"""
