"""Sandboxes for other people's harnesses: one module for each, imported by its harness or by the user.

Each module needs the package of its harness, an extra of this wheel (``pip install 'holdfast[inspect]'``), and uses only what any user of
``holdfast`` can use. ``infra/integrations`` has a page for each, and ``make integrations`` runs their tests with the real packages.
Nothing of the SDK imports this package; the command line imports ``mcp`` for ``holdfast mcp``.
"""
