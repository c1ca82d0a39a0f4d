"""The bundle's first module (``agent/main.pyc``): finds the agent beside itself and starts it.

Owns the import path, the optimizations of the start, and which variables of the image are hidden from the interpreter's libraries. Modules
of the start come from one file (``store.py`` writes it), all others from their own files; ``infra/decisions/0054`` has the figures. It is
compiled into the bundle and not imported from anywhere. Everything else is in ``session_agent.__main__``.
"""

import gc
import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, SourcelessFileLoader

gc.disable()  # imported objects stay alive: a garbage collection would cost a tenth of the start; server enables it
sys.path.insert(0, f"{sys.prefix}/agent")
# libcrypto would read the configuration of the image, which may load libraries of the image; commands get the real environment back
# (session_agent.agent.container)
os.environ["OPENSSL_CONF"] = "/dev/null"
sys.modules["_hashlib"] = None  # type: ignore[assignment]  # hashlib works without it; output.checksums imports it when there is much to hash


class _Loader(SourcelessFileLoader):
    """Loads a module's code from the store the first time, and from the module's own file later."""

    place: tuple[int, int] | None = None

    def get_code(self, name):  # type: ignore[no-untyped-def]
        if self.place is None:
            return super().get_code(name)
        offset, size = self.place
        self.place = None
        return marshal.loads(os.pread(_store, size, offset))  # noqa: S302


class _Finder:
    """Finds each module of the store once, without searching folders."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        line = _lines.pop(name, None)
        if line is None:
            return None
        offset, size, file = line.split(" ", 2)
        file = f"{sys.prefix}/{file}"
        if file.endswith(".so"):
            spec = ModuleSpec(name, ExtensionFileLoader(name, file), origin=file)
        else:
            loader = _Loader(name, file)
            loader.place = int(offset), int(size)
            spec = ModuleSpec(name, loader, origin=file)
            if file.endswith("/__init__.pyc"):
                spec.submodule_search_locations = [file.removesuffix("/__init__.pyc")]
            spec.cached = file
        spec.has_location = True
        return spec


_store = os.open(f"{sys.prefix}/agent/start.bin", os.O_RDONLY | os.O_CLOEXEC)
_later, *_listed = os.read(_store, int(os.read(_store, 8))).decode().splitlines()
_lines = dict(line.split(" ", 1) for line in _listed)
sys.meta_path.insert(0, _Finder)

from types import ModuleType  # noqa: E402


class _Later(ModuleType):
    """A module that others import and the agent rarely uses: it is loaded when one of its attributes is first read."""

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        own = self.__name__
        if sys.modules.get(own) is self:
            del sys.modules[own]
        try:
            __import__(own)
        except BaseException:
            sys.modules[own] = self
            raise
        loaded = sys.modules[own]
        vars(self).update(vars(loaded))
        return getattr(loaded, name)


for _name in _later.split():
    sys.modules[_name] = _Later(_name)

from session_agent.__main__ import run  # noqa: E402

sys.exit(run(sys.argv[1:]))
