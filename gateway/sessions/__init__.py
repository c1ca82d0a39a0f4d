"""Sessions: from a client's WebSocket upgrade to an opaque relay between the client and the sandbox's agent.

Bytes are forwarded, never decoded: ``attach`` and ``relay`` may not import the session state machine.
"""
