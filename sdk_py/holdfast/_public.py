"""A decorator for all public classes: it sets their module name, and an unknown argument raises an error that names the right one.

Owns ``public``, the decorator around each of them. Does not own what single arguments may be (``_arguments``) nor which names of other
tools mean which of ours (``_suggestions``). Applied to both APIs.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any, TypeVar, cast

C = TypeVar("C", bound=type)
PACKAGE = "holdfast"
_VARKEYWORDS, _COROUTINE = 0x08, 0x80
"""Flags of code objects with the values in ``inspect``, which is not imported because that would take longer than this whole module."""


def public(cls: C) -> C:
    """Set the module name of ``cls`` to the package, and let its methods answer an unknown argument with the list of known ones."""
    cls.__module__ = PACKAGE
    for name, value in list(vars(cls).items()):
        if not name.startswith("_") or name == "__init__":
            _adorn(cls, name, value)
        elif name.startswith("__") and isinstance(value, FunctionType):
            value.__module__ = PACKAGE  # ``help`` of Python 3.13 shows where each method comes from
    return cls


def _adorn(cls: type, name: str, value: Any) -> None:
    if isinstance(value, classmethod):
        value.__func__.__module__ = PACKAGE
    elif isinstance(value, property):
        value.fget.__module__ = PACKAGE
    elif isinstance(value, FunctionType):
        setattr(cls, name, _answering(cls, value))
    elif hasattr(value, "around"):  # a method whose result can be awaited or entered
        value.around(functools.partial(_answering, cls))
        value.__module__ = PACKAGE


def _answering(cls: type, function: FunctionType) -> FunctionType:
    """``function``, with an error for unknown arguments that lists the known ones.

    Errors that the function itself raises are not changed.
    """
    function.__module__ = PACKAGE
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & _VARKEYWORDS:
        return function  # it reports unknown arguments itself
    called = cls.__name__.removeprefix("Async") if function.__name__ == "__init__" else function.__name__

    if code.co_flags & _COROUTINE:

        async def begun(*args: Any, **arguments: Any) -> Any:
            try:
                made = function(*args, **arguments)
            except TypeError:
                _refuse(cls, called, names, arguments)
                raise
            return await made

        return _like(begun, function)

    def answer(*args: Any, **arguments: Any) -> Any:
        try:
            return function(*args, **arguments)
        except TypeError as wrong:
            if wrong.__traceback__ is None or wrong.__traceback__.tb_next is None:  # raised by the call, not inside the function
                _refuse(cls, called, names, arguments)
            raise

    return _like(answer, function)


def _like(made: Any, function: FunctionType) -> FunctionType:
    """``made`` with the name, documentation and annotations of ``function``.

    Since Python 3.14 ``update_wrapper`` copies the function that evaluates annotations instead of the annotations; string annotations need
    no evaluation.
    """
    functools.update_wrapper(made, function)
    made.__annotations__ = function.__annotations__
    return cast(FunctionType, made)


def _refuse(cls: type, called: str, names: tuple[str, ...], arguments: dict[str, Any]) -> None:
    unknown = [name for name in arguments if name not in names]
    if unknown:
        from holdfast._suggestions import no_argument

        raise no_argument(cls.__name__.removeprefix("Async"), called, unknown[0], names) from None
