"""What only clients of Orchard Env use: a JSON terminal, and the detection of repeated exec requests. ``FACE`` is its table of rows.

Orchard Env's other routes are the same as Holdfast's own, in ``faces.rest``. The package can be removed together with its name in
``gateway.__main__``; nothing else imports it.
"""

from .rows import FACE as FACE
