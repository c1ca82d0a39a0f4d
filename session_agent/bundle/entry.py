"""The bundle's first module (``agent/main.pyc``): finds the agent beside itself and starts it.

Owns the import path, what makes the start short, and what of the image must not reach the interpreter's libraries. It is compiled into the
bundle and not imported from anywhere. Everything else is ``session_agent.__main__``'s.
"""

import binascii
import builtins
import gc
import marshal
import os
import sys

gc.disable()  # what is imported stays: looking for rubbish costs a tenth of the start; server enables it
sys.path.insert(0, f"{sys.prefix}/agent")
# libcrypto would read the configuration of the image, which may load libraries of the image; commands get the real environment back
# (session_agent.agent.container)
os.environ["OPENSSL_CONF"] = "/dev/null"

import dataclasses  # noqa: E402

with open(f"{sys.prefix}/agent/dataclasses.marshal", "rb") as _file:
    _compiled = marshal.load(_file)  # noqa: S302 - a part of the bundle


def _exec(text, names, found):  # type: ignore[no-untyped-def]
    """What ``dataclasses`` has compiled at build time (``session_agent.bundle.recording``); any other text is compiled now."""
    builtins.exec(_compiled.get((len(text), binascii.crc32(text.encode())), text), names, found)  # noqa: S102


vars(dataclasses)["exec"] = _exec

from session_agent.__main__ import run  # noqa: E402

sys.exit(run(sys.argv[1:]))
