"""``dataclass``, ``field`` and ``replace`` as in the standard library, for modules that have to be imported quickly.

Owns a decorator that makes the same classes without compiling six functions for each: ``__init__`` is compiled when the first object is
made, and comparing, hashing and printing are shared functions. Type checkers see the standard library's. Only what this project uses is
here: ``frozen``, ``slots``, ``repr``, ``eq``, and fields with ``default``, ``default_factory``, ``repr`` and ``hash``. What asks for
``__dataclass_fields__`` (``dataclasses.fields``, ``replace``, ``asdict``) gets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace

    def compile_all() -> None: ...
else:
    _MISSING = type("_Missing", (), {"__repr__": lambda self: "<factory>"})()
    _set = object.__setattr__
    _waiting: dict[type, bool] = {}
    """The classes whose ``__init__`` is not compiled yet, and whether each is frozen."""

    class _Field:
        """The options of one field."""

        __slots__ = ("default", "factory", "hash", "name", "repr", "type")

        def __init__(self, default: Any, factory: Any, repr: bool, hash: bool | None) -> None:  # noqa: A002
            self.name = ""
            self.type = "Any"
            self.default = default
            self.factory = factory
            self.repr = repr
            self.hash = hash

    class _Params:
        """The parameters that the standard library reads from a base class."""

        init = True
        order = unsafe_hash = match_args = kw_only = weakref_slot = False

        def __init__(self, *, frozen: bool, slots: bool, repr: bool, eq: bool) -> None:  # noqa: A002
            self.frozen, self.slots, self.repr, self.eq = frozen, slots, repr, eq

    class _StandardFields:
        """``__dataclass_fields__``, created when it is first read."""

        def __init__(self) -> None:
            self._made: dict[type, dict[str, Any]] = {}

        def __get__(self, _instance: Any, owner: type) -> dict[str, Any]:
            if owner not in self._made:
                self._made[owner] = self._standard(owner)
            return self._made[owner]

        def _standard(self, owner: type) -> dict[str, Any]:
            import dataclasses

            mine = owner.__fast_fields__
            rows = [
                (
                    one.name,
                    one.type,
                    dataclasses.field(
                        **({"default": one.default} if one.default is not _MISSING else {}),
                        **({"default_factory": one.factory} if one.factory is not _MISSING else {}),
                        repr=one.repr,
                        hash=one.hash,
                    ),
                )
                for one in mine.values()
            ]
            return dataclasses.make_dataclass(owner.__name__, rows).__dataclass_fields__

    def field(*, default: Any = _MISSING, default_factory: Any = _MISSING, repr: bool = True, hash: bool | None = None) -> Any:  # noqa: A002
        """A field with options."""
        return _Field(default, default_factory, repr, hash)

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, repr: bool = True, eq: bool = True) -> Any:  # noqa: A002
        """The decorator; see the module."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, slots=slots, repr=repr, eq=eq)
        own = _own_fields(cls)
        fields = {**_inherited(cls), **own}
        body = dict(cls.__dict__)
        for name, one in own.items():
            body.pop(name, None)
            if not slots and one.default is not _MISSING:
                body[name] = one.default
        body["__fast_fields__"] = fields
        body["__dataclass_fields__"] = _StandardFields()
        body["__dataclass_params__"] = _Params(frozen=frozen, slots=slots, repr=repr, eq=eq)
        body.setdefault("__match_args__", tuple(fields))
        _add_methods(cls, body, frozen=frozen, repr_=repr, eq=eq)
        if slots:
            had = {name for base in cls.__mro__[1:] for name in getattr(base, "__slots__", ())}
            body["__slots__"] = tuple(name for name in own if name not in had)
            if frozen:
                body.setdefault("__getstate__", _getstate)
                body.setdefault("__setstate__", _setstate)
        for name in ("__dict__", "__weakref__"):
            body.pop(name, None)
        made = type(cls)(cls.__name__, cls.__bases__, body)
        made.__qualname__ = cls.__qualname__
        if "__init__" not in cls.__dict__:
            made.__init__ = _first_init(made, frozen=frozen)
        return made

    def replace(instance: Any, /, **changes: Any) -> Any:
        """A copy with some fields changed."""
        return type(instance)(**{name: getattr(instance, name) for name in instance.__fast_fields__} | changes)

    def _own_fields(cls: type) -> dict[str, _Field]:
        found = {}
        for name, kind in cls.__annotations__.items():
            if str(kind).startswith(("ClassVar", "typing.ClassVar")):
                continue
            default = cls.__dict__.get(name, _MISSING)
            one = default if isinstance(default, _Field) else _Field(default, _MISSING, True, None)
            one.name, one.type = name, kind
            found[name] = one
        return found

    def _inherited(cls: type) -> dict[str, _Field]:
        found: dict[str, _Field] = {}
        for base in reversed(cls.__mro__[1:]):
            found.update(base.__dict__.get("__fast_fields__", {}))
        return found

    def _add_methods(cls: type, body: dict[str, Any], *, frozen: bool, repr_: bool, eq: bool) -> None:
        if repr_:
            body.setdefault("__repr__", _repr)
        if eq:
            body.setdefault("__eq__", _eq)
            if body.get("__hash__") is None:
                body["__hash__"] = _hash if frozen else None
        if frozen:
            for name, refuse in (("__setattr__", _frozen_set), ("__delattr__", _frozen_delete)):
                if name in cls.__dict__:
                    raise TypeError(f"{name} cannot be written for the frozen {cls.__name__}")
                body[name] = refuse

    def _first_init(cls: type, *, frozen: bool) -> Any:
        """An ``__init__`` that compiles the real one when it is first called."""

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            _compile(cls)
            cls.__init__(self, *args, **kwargs)  # type: ignore[misc]

        _waiting[cls] = frozen
        __init__.__qualname__ = f"{cls.__qualname__}.__init__"
        return __init__

    def compile_all() -> None:
        """Compile every ``__init__`` that is not compiled yet: a process that forks does this once for all its children."""
        for cls in list(_waiting):
            _compile(cls)

    def _compile(cls: type) -> None:
        frozen = _waiting.get(cls)
        if frozen is not None:  # otherwise another thread has compiled it
            cls.__init__ = _compiled(cls, frozen=frozen)  # type: ignore[misc]
            _waiting.pop(cls, None)  # after the other line: a thread that finds nothing here calls what was made

    def _compiled(cls: type, *, frozen: bool) -> Any:
        names: dict[str, Any] = {"_set": _set, "_missing": _MISSING}
        head, lines = ["self"], []
        for name, one in cls.__fast_fields__.items():
            value = name
            if one.factory is not _MISSING:
                names[f"_make_{name}"] = one.factory
                head.append(f"{name}=_missing")
                value = f"_make_{name}() if {name} is _missing else {name}"
            elif one.default is not _MISSING:
                names[f"_default_{name}"] = one.default
                head.append(f"{name}=_default_{name}")
            else:
                head.append(name)
            lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append(" self.__post_init__()")
        source = f"def __init__({', '.join(head)}):\n" + ("\n".join(lines) or " pass")
        exec(source, names)  # noqa: S102  the names are those of the class's own annotations
        made = names["__init__"]
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        made.__module__ = cls.__module__
        return made

    def _repr(self: Any) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name, one in self.__fast_fields__.items() if one.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def _values(self: Any) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__fast_fields__])

    def _eq(self: Any, other: object) -> Any:
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self: Any) -> int:
        return hash(tuple([getattr(self, name) for name, one in self.__fast_fields__.items() if one.hash is not False]))

    def _getstate(self: Any) -> list[Any]:
        return list(_values(self))

    def _setstate(self: Any, state: list[Any]) -> None:
        for name, value in zip(self.__fast_fields__, state, strict=True):
            _set(self, name, value)

    def _frozen_set(self: Any, name: str, value: object) -> None:
        if type(self).__dict__.get("__fast_fields__") is None and name not in self.__fast_fields__:
            _set(self, name, value)  # a subclass that is not a dataclass may have further attributes
            return
        raise _frozen_error(f"cannot assign to field {name!r}")

    def _frozen_delete(self: Any, name: str) -> None:
        if type(self).__dict__.get("__fast_fields__") is None and name not in self.__fast_fields__:
            object.__delattr__(self, name)
            return
        raise _frozen_error(f"cannot delete field {name!r}")

    def _frozen_error(message: str) -> Exception:
        from dataclasses import FrozenInstanceError

        return FrozenInstanceError(message)


__all__ = ["compile_all", "dataclass", "field", "replace"]
