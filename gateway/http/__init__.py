"""HTTP without sandboxes: request fields, JSON answers, problem documents, and uvicorn's protocols with limits on what a client may send.

Knows no sandbox; the routes are in ``gateway.faces``.
"""
