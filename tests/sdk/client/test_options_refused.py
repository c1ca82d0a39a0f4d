"""Invalid settings of a client and invalid sandbox ids are refused at once, before a request is sent."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast import ArgumentsTooLongError, AsyncSandboxClient, ConfigurationError, InvalidArgumentError, SandboxClient
from holdfast._options import find_options
from holdfast._requests import LargeParams, bounded, command_params
from holdfast_wire.codec import decode, decode_params, encode_item
from holdfast_wire.frames import Open
from holdfast_wire.limits import DECODE_ITEMS, PARAMS_ITEMS

NAN = float("nan")


@pytest.mark.parametrize("client", [SandboxClient, AsyncSandboxClient])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("connect_timeout_s", (0, -1, NAN, float("inf"), "3", None, True)),
        ("request_timeout_s", (0, -1, NAN, float("inf"), "3", None)),
        ("resume_timeout_s", (-1, NAN, "3", None)),
        ("max_output_bytes", (-1, 1.5, "3", None, True)),
        ("transport", ("", "ws", None, 3)),
    ],
)
def test_invalid_settings_are_refused(client: Any, name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=name) as refused:
            client("http://127.0.0.1:1", "k", **{name: value})
        assert refused.value.hint


def test_zero_is_allowed_for_resume_timeout_s_and_max_output_bytes() -> None:
    SandboxClient("http://127.0.0.1:1", "k", resume_timeout_s=0, max_output_bytes=0).close()


def test_spaces_around_an_address_and_a_key_are_removed() -> None:
    assert find_options(" http://x:1/ ", " key\n", environ={}) == ("http://x:1", "key")
    with pytest.raises(ConfigurationError):
        find_options("http://x:1", "  ", environ={})


@pytest.mark.parametrize("sandbox_id", ["", "a/b", "../x", "a b", "%2e", ".", "..", "x?y", "x#y", "é", "x" * 200, None, 5, b"sb"])
def test_invalid_sandbox_ids_are_refused(sandbox_id: Any) -> None:
    with SandboxClient("http://127.0.0.1:1", "k") as client, pytest.raises(InvalidArgumentError, match="no sandbox has the id") as refused:
        client.get_sandbox(sandbox_id)
    assert "holdfast list" in refused.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 10**20},
        {"timeout": 1e300},
        {"env": {"A": "\udcff"}},
        {"env": {"\udcff": "a"}},
        {"labels": {"a": "\udcff"}},
        {"network": {"a": object()}},
    ],
)
def test_values_that_cannot_be_encoded_are_refused(wrong: dict[str, Any]) -> None:
    with SandboxClient("http://127.0.0.1:1", "k", resume_timeout_s=0) as client, pytest.raises(InvalidArgumentError):
        client.create_sandbox("host", **wrong)


def test_too_many_arguments_are_refused_and_do_not_end_the_session() -> None:
    with pytest.raises(ArgumentsTooLongError, match=str(PARAMS_ITEMS)) as refused:
        _command(["rm", *["a"] * PARAMS_ITEMS])
    assert "file" in refused.value.hint
    with pytest.raises(ArgumentsTooLongError, match=str(PARAMS_ITEMS)):
        _command(["env"], {f"A{at}": "" for at in range(PARAMS_ITEMS + 1)})
    one = _command(["rm", *["a"] * (DECODE_ITEMS - 1)])
    assert not isinstance(one, LargeParams)
    decode(encode_item(Open(1, "command", one), 0))
    for many in (["rm", *["a"] * (PARAMS_ITEMS - 1)], ["rm", "a" * 300_000]):
        large = _command(many)
        assert isinstance(large, LargeParams)
        assert decode_params(large.packed()) == large


def test_values_within_values_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="user cannot be a dict"):
        _command(["true"], user={"x": [0] * (DECODE_ITEMS + 1)})
    with pytest.raises(InvalidArgumentError, match="mode cannot be a list"):
        bounded({"path": "a", "mode": [[[]]]})


def _command(argv: list[str], env: dict[str, str] | None = None, user: Any = None) -> dict[str, Any]:
    return command_params(argv, command_id=None, cwd=None, env=env, user=user, timeout=None, login=False, stdin=False, outlive="kill")


@pytest.mark.parametrize("wrong", [0, -1, True, "60", float("inf"), float("nan"), 367 * 86400, None])
async def test_invalid_lifetimes_have_specific_hints(face: Any, wrong: Any) -> None:
    client = face.client("http://127.0.0.1:1", "k", resume_timeout_s=0)
    sandbox = client.get_sandbox("sb")
    for call, expected, hint in (
        (sandbox.extend, "seconds must be a number of seconds above 0", "to end it sooner, call set_lifetime(), which counts from now"),
        (sandbox.set_lifetime, "lifetime_s must be a number of seconds above 0", "to end it now, call delete()"),
    ):
        with pytest.raises(InvalidArgumentError, match=expected) as refused:
            await call(wrong)
        assert refused.value.hint == hint
    with pytest.raises(InvalidArgumentError, match="ttl_s must be a number of seconds above 0") as refused:
        client.group("run", ttl_s=wrong)
    assert "leave it out for a minute" in refused.value.hint
    await client.close()
