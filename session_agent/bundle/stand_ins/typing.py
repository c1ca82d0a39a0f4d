"""The bundle's ``typing``: names for annotations that nothing reads at run time; the standard library's module costs half a MiB.

Owns what is left of them when a program runs: classes that can be inherited and subscripted, functions that return what they are given.
``build`` puts it in.
"""

from __future__ import annotations

from collections import namedtuple

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
    """The same: no code checks whether an object follows a protocol."""

    __slots__ = ()


def __getattr__(name: str) -> _Form:
    if name.startswith("__") or not name[:1].isupper():
        raise AttributeError(f"the bundle's typing has no {name}")
    form = globals()[name] = _Form(name)  # each name is one object: a dataclass knows ClassVar by its identity
    return form


class _NamedTupleMeta(type):
    """Makes a tuple of a class whose annotations are its fields; its other names become the tuple's."""

    def __new__(cls, name: str, bases: tuple[type, ...], names: dict[str, object]) -> type:
        if not bases:
            return super().__new__(cls, name, bases, names)
        fields = list(names.get("__annotations__", ()))  # type: ignore[call-overload]
        made = namedtuple(name, fields, defaults=[names[field] for field in fields if field in names])  # type: ignore[misc]  # noqa: PYI024 - this is typing
        for key, value in names.items():
            if key not in fields and key not in ("__annotations__", "__dict__", "__weakref__", "__classcell__"):
                setattr(made, key, value)
        return made


class _NamedTuple(metaclass=_NamedTupleMeta):
    pass


class NamedTuple:
    """The base class of the standard library; it cannot be called."""

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (_NamedTuple,)


NamedTuple = NamedTuple()  # type: ignore[assignment,misc]


def NewType(_: str, of: type) -> type:  # noqa: N802 - the standard library's name
    return of


def cast(_: object, value: object) -> object:
    return value


def overload(function: object) -> object:
    return function


final = runtime_checkable = no_type_check = overload
