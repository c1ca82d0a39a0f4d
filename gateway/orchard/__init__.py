"""The three features that only clients of Orchard Env use: its JSON terminal, its login shell, and the detection of repeated exec requests.

Orchard Env's other routes are the same as Holdfast's own: ``gateway.app`` lists them, and ``gateway.routes`` serves them. This package is
used by ``gateway.app`` and ``routes.commands`` and can be removed together with these uses.
"""
