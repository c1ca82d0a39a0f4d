"""Where the address and the key come from, and the errors about mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast import ArgumentsTooLongError, ConfigurationError, InvalidArgumentError, InvalidPathError, SandboxClient
from holdfast._arguments import environment, host_of, path_of, seconds, wait_time_of
from holdfast._local_files import local_path
from holdfast._options import Options, find_options
from holdfast._requests import command_params, create_body, terminal_params


def test_order_of_places(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("HOLDFAST_URL=http://file:1\nexport HOLDFAST_API_KEY='file-key'\n# comment\n")
    ours = {"HOLDFAST_URL": "http://ours:1/", "HOLDFAST_API_KEY": "ours"}
    orchard = {"SANDBOX_BASE_URL": "http://orchard:1", "SANDBOX_API_KEY": "orchard"}
    assert find_options("http://given:1", "given", environ=ours) == ("http://given:1", "given")
    assert find_options(environ={**orchard, **ours}) == ("http://ours:1", "ours")
    assert find_options(environ=orchard) == ("http://orchard:1", "orchard")
    assert find_options(environ={"HOLDFAST_DATA": str(tmp_path)}) == ("http://file:1", "file-key")


def test_the_local_key_is_not_sent_to_another_service(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("HOLDFAST_URL=http://file:1\nHOLDFAST_API_KEY=file-key\n")
    with pytest.raises(ConfigurationError, match="no API key"):
        find_options(environ={"HOLDFAST_URL": "https://elsewhere", "HOLDFAST_DATA": str(tmp_path)})
    found = find_options(environ={"HOLDFAST_URL": "http://file:1/", "HOLDFAST_DATA": str(tmp_path)})
    assert found == ("http://file:1", "file-key")


def test_an_error_without_any_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no Holdfast service") as missing:
        find_options(environ={}, folder=tmp_path)
    assert "HOLDFAST_URL" in missing.value.hint


@pytest.mark.parametrize("url", ["ftp://x", "http://", "x", "http://u:p@x", "http://x?a=1", "http://x:99999", "http://x:port"])
def test_malformed_urls(url: str) -> None:
    with pytest.raises(ConfigurationError):
        find_options(url, "k", environ={})


def test_a_malformed_key_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as bad:
        find_options("http://x", "se cret\r\nX: y", environ={})
    assert "cret" not in str(bad.value)


def test_the_key_is_not_printed() -> None:
    assert "hf_secret" not in repr(Options("http://x", "hf_secret"))


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "3"])
def test_bad_times(value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        seconds(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "3"])
def test_bad_times_of_waits(value: object) -> None:
    with pytest.raises(InvalidArgumentError):
        wait_time_of(value, "wait_s")  # type: ignore[arg-type]


def test_a_wait_may_take_no_time() -> None:
    assert (wait_time_of(0), wait_time_of(None), wait_time_of(2)) == (0, None, 2)
    with pytest.raises(InvalidArgumentError, match="wait_s must be a number of seconds from 0 to"):
        wait_time_of(-1, "wait_s")


@pytest.mark.parametrize("host", ["", "a\0", "\ud800", None])
def test_bad_hosts(host: str) -> None:
    with pytest.raises(InvalidArgumentError, match="local_host must be the name or address of a host"):
        host_of(host, "local_host")


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_bad_local_paths(path: str) -> None:
    with pytest.raises(InvalidPathError, match="the local path"):
        local_path(path)


@pytest.mark.parametrize("name", ["", None])
def test_bad_names_of_images(name: str) -> None:
    with SandboxClient("http://127.0.0.1:9", "hf_x") as client, pytest.raises(InvalidArgumentError, match="name of an image"):
        client.images.remove(name)


def test_a_long_word_for_a_terminal_is_refused_at_once() -> None:
    with pytest.raises(ArgumentsTooLongError, match="not split into words"):  # to split it would take minutes
        terminal_params("x" * 3_000_000, 24, 80, None, None, None, None, False)


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_bad_paths(path: str) -> None:
    with pytest.raises(InvalidPathError):
        path_of(path)


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "\0"}, {"A": 1}])
def test_bad_environments(env: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError):
        environment(env)


@pytest.mark.parametrize("command", [[], [1], ["a\0"], "a\0b", b"bytes", 5, None])
def test_bad_commands(command: object) -> None:
    with pytest.raises(InvalidArgumentError):
        command_params(
            command,  # type: ignore[arg-type]
            command_id=None,
            cwd=None,
            env=None,
            user=None,
            timeout=None,
            login=False,
            stdin=False,
            outlive="kill",
        )


def test_cluster_options_are_sent_as_given() -> None:
    usual = dict.fromkeys(
        ("cpu", "memory", "disk", "env", "labels", "ready_timeout_s", "lifetime_s", "idle_timeout_s", "heartbeat_timeout_s")
    )
    network = {"mode": "listed", "reaches": ({"cidr": "1.1.1.0/24", "ports": (443,)},)}
    volumes = ({"path": "/scratch", "size": "1Gi"},)
    body = create_body(
        "image",
        sandbox_id="x",
        block_network=True,
        network=network,
        cluster={"gpu": 1, "volumes": volumes, "node_selector": {"a": "b"}, "user": 0},
        **usual,  # type: ignore[arg-type]
    )
    assert "block_network" not in body
    assert body["network"] == {"mode": "listed", "reaches": [{"cidr": "1.1.1.0/24", "ports": [443]}]}
    assert (body["gpu"], body["volumes"], body["node_selector"], body["user"]) == (1, [{"path": "/scratch", "size": "1Gi"}], {"a": "b"}, 0)
    with pytest.raises(InvalidArgumentError, match="gpus"):
        create_body("image", sandbox_id="x", block_network=True, cluster={"gpus": 1}, **usual)  # type: ignore[arg-type]
    for wrong in (None, 0, "no"):  # None opened the network before
        with pytest.raises(InvalidArgumentError, match="block_network must be True or False"):
            create_body("image", sandbox_id="x", block_network=wrong, **usual)  # type: ignore[arg-type]


def test_a_terminal_names_nul_in_its_command_once() -> None:
    with pytest.raises(InvalidArgumentError) as why:
        terminal_params("a\0b", 24, 80, None, None, None, None, False)
    assert why.value.message == "a command cannot hold NUL"


@pytest.mark.parametrize(
    ("habit", "names"),
    [
        ("timeout", ("ready_timeout_s", "lifetime_s")),  # Modal and E2B use it for the lifetime, docker for the wait until ready
        ("envs", ("env",)),
        ("environment", ("env",)),
        ("metadata", ("labels",)),
        ("template", ("image",)),
        ("name", ("sandbox_id",)),
        ("mem_limit", ("memory",)),
        ("cpus", ("cpu",)),
        ("memroy", ("memory",)),
        ("workdir", ("cwd",)),
        ("allow_internet_access", ("block_network",)),
        ("encrypted_ports", ("tunnel",)),
    ],
)
def test_an_argument_name_of_another_library_gets_an_error_with_our_name(habit: str, names: tuple[str, ...]) -> None:
    with SandboxClient("http://127.0.0.1:1", "k") as client, pytest.raises(InvalidArgumentError) as refused:
        client.create_sandbox("host", **{habit: 300})  # type: ignore[arg-type]
    assert all(name in refused.value.message for name in names), refused.value
    assert "sandbox_id" in refused.value.hint


@pytest.mark.parametrize("wrong", [{"cpu": "many"}, {"memory": "4 GB"}, {"cpu": 0}, {"labels": {"a": 1}}, {"ready_timeout_s": -3}])
def test_bad_quantities_are_refused_before_a_request_is_sent(wrong: dict[str, object]) -> None:
    usual: dict[str, object] = dict.fromkeys(
        ("cpu", "memory", "disk", "env", "labels", "ready_timeout_s", "lifetime_s", "idle_timeout_s", "heartbeat_timeout_s")
    )
    with pytest.raises(InvalidArgumentError):
        create_body("image", sandbox_id="x", block_network=True, **{**usual, **wrong})  # type: ignore[arg-type]
