"""Settings of a client and ids of sandboxes that cannot be meant: told at once, before anything is sent or waits."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast import AsyncSandboxClient, ConfigurationError, InvalidArgumentError, SandboxClient
from holdfast._options import find_options

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
def test_settings_that_cannot_be_meant(client: Any, name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigurationError, match=name) as refused:
            client("http://127.0.0.1:1", "k", **{name: value})
        assert refused.value.hint


def test_zero_seconds_to_resume_and_no_output_can_be_meant() -> None:
    SandboxClient("http://127.0.0.1:1", "k", resume_timeout_s=0, max_output_bytes=0).close()


def test_spaces_around_an_address_are_nobodys_intention() -> None:
    assert find_options(" http://x:1/ ", " key\n", environ={}) == ("http://x:1", "key")
    with pytest.raises(ConfigurationError):
        find_options("http://x:1", "  ", environ={})


@pytest.mark.parametrize("sandbox_id", ["", "a/b", "../x", "a b", "%2e", ".", "..", "x?y", "x#y", "é", "x" * 200, None, 5, b"sb"])
def test_ids_that_no_sandbox_has(sandbox_id: Any) -> None:
    with SandboxClient("http://127.0.0.1:1", "k") as client, pytest.raises(InvalidArgumentError, match="no sandbox has the id") as refused:
        client.get_sandbox(sandbox_id)
    assert "holdfast list" in refused.value.hint
