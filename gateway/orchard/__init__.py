"""What only clients of Orchard Env use: a JSON terminal, a login shell, and the detection of repeated exec requests.

Used by the table of routes in ``gateway.app`` and by ``routes.commands``, and removable with these uses.
"""
