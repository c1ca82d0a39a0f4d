"""Projects and stored keys at work: this replica's copy of them, the file that keeps them on one machine, and what is in use by which key.

``copy.TenantCopy`` is the ``Identities`` of the gateway. ``use_cases.keys`` and ``use_cases.projects`` change it; the values are in
``gateway.identity.tenants``.
"""
