"""What exists only for clients of Orchard Env: its JSON terminal, its login shell, and the detection of its repeated exec requests.

Used by the table of routes in ``gateway.app`` and by ``routes.commands``, and removable with these uses.
"""
