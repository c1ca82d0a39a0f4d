"""The bundle's first module (``agent/main.pyc``): finds the agent beside itself and starts it.

Owns the import path, what makes the start short, and what of the image must not reach the interpreter's libraries. It is compiled into the
bundle and not imported from anywhere. Everything else is ``session_agent.__main__``'s.
"""

import gc
import importlib
import os
import sys
from types import ModuleType

gc.disable()  # what is imported stays: looking for rubbish costs a tenth of the start; server enables it
sys.path.insert(0, f"{sys.prefix}/agent")
# libcrypto would read the configuration of the image, which may load libraries of the image; commands get the real environment back
# (session_agent.agent.container)
os.environ["OPENSSL_CONF"] = "/dev/null"
sys.modules["_hashlib"] = None  # type: ignore[assignment]  # hashlib does without; output.checksums imports it when there is much to hash


class _Later(ModuleType):
    """A module that others import and the agent hardly ever uses: it is loaded when something of it is first asked for."""

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        own = self.__name__
        if sys.modules.get(own) is self:
            del sys.modules[own]
        try:
            loaded = importlib.import_module(own)
        except BaseException:
            sys.modules[own] = self
            raise
        vars(self).update(vars(loaded))
        return getattr(loaded, name)


for _name in ("inspect", "locale", "tokenize"):  # of dataclasses and asyncio, of subprocess, of linecache
    sys.modules[_name] = _Later(_name)

from session_agent.__main__ import run  # noqa: E402

sys.exit(run(sys.argv[1:]))
