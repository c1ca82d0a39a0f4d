"""The life of sandboxes: their creation, from a spare or not, and the renewal of what REST uses.

How a request asks for it is in ``gateway.routes``; when a sandbox expires is decided in ``gateway.controller``.
"""
