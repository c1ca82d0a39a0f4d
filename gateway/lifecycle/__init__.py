"""The lifecycle of sandboxes: their creation, with or without a spare, and the renewal of their activity by REST requests.

Requests are read in ``gateway.routes``; ``gateway.controller`` decides when a sandbox expires.
"""
