"""How a coroutine function that makes something is called: ``await make()`` or, without a second ``await``, ``async with make() as it``.

Owns the decorator and the object between the call and the thing. ``threads.opening`` has the same name and does nothing: there a call
gives the thing itself.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Opening(Generic[T]):
    """An object that is still to be made. Nothing is sent before it is awaited or entered."""

    __slots__ = ("_coroutine", "_made")
    _made: Any

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Any:
        self._made = await self._coroutine
        return await self._made.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._made.__aexit__(kind, value, trace)

    # What else a coroutine can do: ``asyncio.create_task`` and its like take nothing but coroutines.

    def send(self, value: Any) -> Any:
        """As of a coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """As of a coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """As of a coroutine."""
        self._coroutine.close()


Coroutine.register(Opening)


class _Method:
    """A coroutine function as a method. ``inspect.iscoroutinefunction`` is true of it: it has the function's code."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        functools.update_wrapper(self, function)
        self.__annotations__ = function.__annotations__  # update_wrapper copies them until Python 3.13
        self._function = function
        self.__code__ = function.__code__
        self.__defaults__ = function.__defaults__
        self.__kwdefaults__ = function.__kwdefaults__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def around(self, change: Callable[[Any], Any]) -> None:
        """Have what ``change`` makes of the function called instead of it."""
        self._function = change(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Opening[Any]:
        return Opening(self._function(*args, **kwargs))


def opening(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Around a method that makes something with a ``with`` block of its own."""
    return _Method(function)
