"""Creating an object by ``await make()`` or, without a second ``await``, by ``async with make() as it``.

Owns the decorator of such methods, the object that a call returns, and the base of objects that need no creation. ``threads.opening`` has
the same names and does nothing: there the call returns the created object.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from holdfast._public import public

P = ParamSpec("P")
T = TypeVar("T")


class Opening(Generic[T]):
    """An object that is not created yet. Nothing is sent before it is awaited or entered."""

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

    # The other methods of a coroutine: ``asyncio.create_task`` and similar functions accept only coroutines.

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


@public
class AsyncPresent:
    """Base of an object that ``await`` returns as it is: ``await client.get_sandbox(id)`` sends nothing."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, Self]:
        yield from ()  # nothing to wait for
        return self


class _Method:
    """A coroutine function as a method. ``inspect.iscoroutinefunction`` returns True for it, because it has the function's code."""

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
        """Replace the function by ``change(function)``."""
        self._function = change(self._function)

    def __call__(self, *args: Any, **kwargs: Any) -> Opening[Any]:
        return Opening(self._function(*args, **kwargs))


def opening(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Decorator of a method that creates an object which has a ``with`` block."""
    return _Method(function)
