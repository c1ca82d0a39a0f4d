"""The gateway: REST and WebSocket in front of sandboxes, stateless, any number of replicas.

Owns the public HTTP surface, placement (in Redis), runtimes and the controller. It never imports the session state machine
(``holdfast_wire.session``, ``.halves``), the agent or the SDK.
"""
