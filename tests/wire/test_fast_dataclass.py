"""The project's own ``dataclass`` makes the same classes as the standard library's: each class is made by both, and they are compared."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest
from holdfast_wire import fast_dataclass
from holdfast_wire.frames import Output
from holdfast_wire.rest import SandboxRecord


def base(make: Any, field: Any, **options: Any) -> type:
    class Base:
        """A base."""

        KIND: ClassVar[int] = 1
        first: int
        second: str = "s"

        @property
        def twice(self) -> int:
            return 2 * self.first

    Base.__qualname__ = "Base"
    return make(Base, **options)  # type: ignore[no-any-return]


def child(make: Any, field: Any, **options: Any) -> type:
    class Child(base(make, field, **options)):  # type: ignore[misc]
        """A child."""

        secret: bytes = field(default=b"x", repr=False)
        many: list[int] = field(default_factory=list, hash=False)
        second: str = "other"

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError(self.first)

    Child.__qualname__ = "Child"
    return make(Child, **options)  # type: ignore[no-any-return]


OPTIONS = [{"frozen": True, "slots": True}, {"slots": True}, {"frozen": True, "slots": True, "repr": False}, {"slots": True, "eq": False}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", [base, child])
def test_both_make_the_same(shape: Any, options: dict[str, Any]) -> None:
    ours, theirs = (
        shape(fast_dataclass.dataclass, fast_dataclass.field, **options),
        shape(dataclasses.dataclass, dataclasses.field, **options),
    )
    assert ours.__slots__ == theirs.__slots__
    assert ours.__match_args__ == theirs.__match_args__
    assert [f.name for f in dataclasses.fields(ours)] == [f.name for f in dataclasses.fields(theirs)]
    for arguments, named in (
        ((1,), {}),
        ((1, "z"), {}),
        ((), {"first": 3, "second": "t"}),
        ((), {}),
        ((1, 2, 3, 4, 5, 6), {}),
        ((1,), {"no": 1}),
        ((-1,), {}),
    ):
        outcomes: list[Any] = []
        for kind in (ours, theirs):
            try:
                made = kind(*arguments, **named)
            except (TypeError, ValueError) as wrong:
                outcomes.append(type(wrong))
                continue
            shown = repr(made) if options.get("repr", True) else ""
            values = [getattr(made, name) for name in kind.__match_args__]
            outcomes.append(
                (
                    shown,
                    values,
                    made.twice,
                    made == kind(*arguments, **named),
                    made == 5,
                    dataclasses.asdict(made),
                    _hashed(made),
                    _set(made),
                )
            )
        assert outcomes[0] == outcomes[1]


def _hashed(made: Any) -> Any:
    try:
        return "id" if hash(made) == object.__hash__(made) else hash(made)
    except TypeError as wrong:
        return type(wrong)


def _set(made: Any) -> Any:
    outcomes = []
    for name in ("first", "unknown"):
        try:
            setattr(made, name, 9)
            outcomes.append(getattr(made, name))
        except (AttributeError, TypeError) as wrong:
            outcomes.append("refused" if name == "unknown" else type(wrong))  # the standard library's error depends on its slots
    return outcomes


def test_frames_and_records_of_the_project() -> None:
    output = Output(1, 2, b"data")
    assert output == Output(channel=1, stream=2, data=b"data") != Output(1, 2, b"other")
    assert hash(output) == hash(Output(1, 2, b"data"))
    assert dataclasses.replace(output, stream=1) == Output(1, 1, b"data")
    assert pickle.loads(pickle.dumps(output)) == copy.deepcopy(output) == copy.copy(output) == output
    assert dataclasses.is_dataclass(SandboxRecord)
    assert set(SandboxRecord.__dataclass_fields__) == set(SandboxRecord.__match_args__)
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.stream = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del output.stream

    class Plain(Output):
        """No dataclass, and with attributes of its own."""

    plain = Plain(1, 2, b"")
    plain.more = 5  # type: ignore[attr-defined]
    assert plain.more == 5  # type: ignore[attr-defined]

    @dataclasses.dataclass(frozen=True)
    class Standard(SandboxRecord):
        extra: int = 0

    assert {"extra", "image"} <= {field.name for field in dataclasses.fields(Standard)}


def test_a_copy_with_some_fields_changed() -> None:
    output = Output(1, 2, b"data")
    assert fast_dataclass.replace(output, stream=1, data=b"") == Output(1, 1, b"")
    with pytest.raises(TypeError):
        fast_dataclass.replace(output, unknown=1)  # type: ignore[call-arg]


def test_all_classes_can_be_compiled_before_a_first_object() -> None:
    @fast_dataclass.dataclass(slots=True)
    class Late:
        number: int = 3

    waiting = Late.__init__
    fast_dataclass.compile_all()
    assert Late.__init__ is not waiting
    assert Late().number == 3
    late = Late.__init__
    fast_dataclass.compile_all()
    assert Late.__init__ is late
    assert waiting(Late.__new__(Late), 4) is None  # as a thread does that looked it up before
