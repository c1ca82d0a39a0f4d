"""The server's side of SWE-ReX below ``/sandboxes/{id}/swerex``, for its unmodified ``RemoteRuntime``. ``FACE`` is its table of rows.

Its sessions are living shells with a terminal, its other calls commands and files. The package can be removed together with its name in
``gateway.__main__``; nothing else imports it.
"""

from .rows import FACE as FACE
