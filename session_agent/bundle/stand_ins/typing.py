"""The bundle's ``typing``: names for annotations that nothing reads at run time; the standard library's module costs half a MiB.

Owns what is left of them when a program runs: classes that can be inherited and subscripted, functions that return what they are given.
``build`` puts it in.
"""

from __future__ import annotations

TYPE_CHECKING = False


class _Form:
    """A name that can be subscripted, called, inherited and joined with others, and stays what it is."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getitem__(self, _: object) -> _Form:
        return self

    def __call__(self, *_: object, **__: object) -> _Form:
        return self

    def __or__(self, _: object) -> _Form:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return ()

    def __repr__(self) -> str:
        return f"typing.{self.__name__}"


class _GenericAlias:
    """Of nothing: dataclasses compare with it."""


class Generic:
    """A base class that takes parameters."""

    __slots__ = ()

    def __class_getitem__(cls, _: object) -> type:
        return cls


class Protocol(Generic):
    """The same: nobody asks whether an object follows a protocol."""

    __slots__ = ()


def __getattr__(name: str) -> _Form:
    if name.startswith("__") or not name[:1].isupper():
        raise AttributeError(f"the bundle's typing has no {name}")
    form = globals()[name] = _Form(name)  # each name is one object: a dataclass knows ClassVar by its identity
    return form


def NewType(_: str, of: type) -> type:  # noqa: N802 - the standard library's name
    return of


def cast(_: object, value: object) -> object:
    return value


def overload(function: object) -> object:
    return function


final = runtime_checkable = no_type_check = overload
