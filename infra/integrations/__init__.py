"""``make integrations``: the tests of ``holdfast.integrations`` with the packages of the harnesses, and the table of their results.

``suites`` lists them, ``environments`` installs each in an environment of its own, ``__main__`` runs them on one stack and prints the
table.
"""
