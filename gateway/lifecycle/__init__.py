"""The life of sandboxes: admission, creation, adoption of spares, and the labels a record is rebuilt from.

How a request asks for it is in ``gateway.http``; when a sandbox expires is decided in ``gateway.controller``.
"""
