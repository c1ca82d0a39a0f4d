"""A value beyond its limit is refused with an error that names the field, the limit and, if it is short, the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes, parse_cpu

from gateway.http.request_fields import Fields
from gateway.model.option_fields import read_network, read_options

INF, NAN = float("inf"), float("nan")
MANY = {f"l{number}": "x" for number in range(1000)}


def seconds(value: Any) -> Any:
    return Fields({"timeout": value}).seconds("timeout")


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        *((seconds, value, ("timeout", "above 0", "31622400")) for value in (1e18, 0, -1, "nan", INF, NAN, True, "1e400")),
        *(
            (parse_cpu, value, ("cpu", "above 0", "4096", repr(value)))
            for value in (9999, 0, -2, "nan", NAN, INF, "4 cores", "", True, None)
        ),
        *(
            (parse_bytes, value, ("memory", "above 0", "Ti", repr(value)))
            for value in ("1Zi", "-1Gi", 0, -1, 1e30, "9Ei", "1.5.2Gi", NAN, INF)
        ),
        (lambda value: parse_bytes(value, "disk"), "1Zi", ("disk", "Gi", "'1Zi'")),
        (lambda value: Fields({"labels": value}).labels(), MANY, ("labels", "at most 64", "not 1000")),
        (lambda value: Fields({"labels": value}).labels(), {"a": "x" * 5000}, ("labels", "1024")),
        (lambda value: Fields({"env": value}).environment(), {"A": "x" * 200_000}, ("env", "131072", "not 200001")),
        (lambda value: read_options({"resources": value}), {f"a/{name}": 1 for name in MANY}, ("resources", "at most 64")),
        (lambda value: read_options({"gpu": value}), 10**6, ("gpu", "from 1 to 1024")),
        (lambda value: read_options({"pids": value}), 1, ("pids", "from 16 to 4194304")),
        (lambda value: read_options({"node_selector": value}), {"a b": "c"}, ("node_selector", "'a b'")),
        (lambda value: read_options({"tolerations": value}), [{"key": "a"}] * 50, ("tolerations", "at most 32")),
        (lambda value: read_options({"volumes": value}), [{"path": f"/{name}"} for name in MANY], ("volumes", "at most 32")),
        (lambda value: read_options({"user": value}), 2**40, ("user", "2147483647")),
        (lambda value: read_network({"reaches": value}), [{"cidr": "1.1.1.1/32"}] * 65, ("network.reaches", "at most 64")),
    ],
)
def test_the_error_names_the_field_and_the_limit(read: Callable[[Any], Any], value: Any, expected: tuple[str, ...]) -> None:
    with pytest.raises(HoldfastError) as caught:
        read(value)
    assert caught.value.code == ("invalid_quantity" if read in (parse_cpu, parse_bytes) or expected[0] == "disk" else "invalid_argument")
    assert caught.value.fault == "caller"
    for part in expected:
        assert part in caught.value.message, caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("64Ki", 65536),
        ("1k", 1000),
        ("1.5Mi", 3 << 19),
        ("2G", 2 * 10**9),
        ("1Ti", 1 << 40),
        ("7", 7),
        ("512m", 512 << 20),
        ("4g", 4 << 30),
    ],
)
def test_every_documented_unit_is_read(value: str, size: int) -> None:
    assert parse_bytes(value) == size


def test_a_long_value_is_not_repeated_in_the_error() -> None:
    for read in (parse_cpu, parse_bytes):
        with pytest.raises(HoldfastError) as caught:
            read("x" * 100_000)
        assert len(caught.value.message) < 300


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    """JSON has one kind of number, and clients in some languages write every number with a fraction."""
    assert (Fields({"user": 1000.0}).user(), Fields({"mode": 420.0}).integer("mode", 0, least=0, most=4095)) == (1000, 420)
    with pytest.raises(HoldfastError, match="user"):
        Fields({"user": 1000.5}).user()


def test_a_whole_number_of_a_query_may_have_as_many_digits_as_its_bound() -> None:
    assert Fields({"offset": str(2**53)}).integer("offset", 0, least=0, most=2**53) == 2**53
    for wrong in (str(2**53 + 1), "9" * 5000, "1e3"):
        with pytest.raises(HoldfastError, match="offset must be a whole number"):
            Fields({"offset": wrong}).integer("offset", 0, least=0, most=2**53)
