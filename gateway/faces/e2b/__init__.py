"""The API of E2B, so that programs written for its SDKs run here unchanged. ``FACE`` and ``host_face`` are its tables of rows.

Both parts of E2B's API are here: its control plane (``control``), and what its SDKs find in a sandbox (``processes``, ``filesystem``,
``transfers``), which is served by the gateway on the same use cases as REST. The package can be removed together with its name in
``gateway.__main__``; nothing else imports it.
"""

from .rows import FACE as FACE
from .rows import host_face as host_face
