"""The faces of the gateway: each turns the requests of one API into use cases, and their records into answers.

A face is a table of rows (``table.Row``: method, path, scope, handler) and its handlers. Faces do not import each other (.importlinter),
and each can be removed with its name in ``gateway.__main__``. ``rest`` is Holdfast's own API, ``orchard`` is what only clients of
Orchard Env use, ``e2b`` the API of E2B.
"""
