"""The bundle's first module (``agent/main.pyc``): finds the agent beside itself and starts it.

Owns the import path, what makes the start short, and what of the image must not reach the interpreter's libraries. It is compiled into the
bundle and not imported from anywhere. Everything else is ``session_agent.__main__``'s.
"""

import binascii
import builtins
import gc
import importlib
import marshal
import os
import sys
from types import FunctionType, ModuleType

gc.disable()  # what is imported stays: looking for rubbish costs a tenth of the start; server enables it
sys.path.insert(0, f"{sys.prefix}/agent")
# libcrypto would read the configuration of the image, which may load libraries of the image; commands get the real environment back
# (session_agent.agent.container)
os.environ["OPENSSL_CONF"] = "/dev/null"


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


def _iscoroutinefunction(function):  # type: ignore[no-untyped-def]
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and bool(code.co_flags & 0x80)


def _unwrap(function):  # type: ignore[no-untyped-def]
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _isfunction(function):  # type: ignore[no-untyped-def]
    return isinstance(function, FunctionType)


# what asyncio asks of inspect as it sets a signal's handler
_INSPECT = {"iscoroutinefunction": _iscoroutinefunction, "unwrap": _unwrap, "isfunction": _isfunction}
_PIPES = {"PIPE": -1, "STDOUT": -2, "DEVNULL": -3}
for _name, _known in {
    "inspect": _INSPECT,  # dataclasses and asyncio
    "ipaddress": {},  # websockets, for clients
    "locale": {},  # subprocess
    "subprocess": _PIPES,  # asyncio; the agent where a kernel executes no files in memory
    "tokenize": {},  # linecache, for files of text
}.items():
    sys.modules[_name] = _Later(_name)
    vars(sys.modules[_name]).update(_known)  # type: ignore[call-overload]

import dataclasses  # noqa: E402

with open(f"{sys.prefix}/agent/dataclasses.marshal", "rb") as _file:
    _compiled = marshal.load(_file)  # noqa: S302 - a part of the bundle


def _exec(text, names, found):  # type: ignore[no-untyped-def]
    """What ``dataclasses`` has compiled at build time (``session_agent.bundle.recording``); any other text is compiled now."""
    builtins.exec(_compiled.get((len(text), binascii.crc32(text.encode())), text), names, found)  # noqa: S102


vars(dataclasses)["exec"] = _exec

from session_agent.__main__ import run  # noqa: E402

sys.exit(run(sys.argv[1:]))
