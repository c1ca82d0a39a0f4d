"""Command lines of docker users work, or the first line of the error names the equivalent here."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast import Chunk
from holdfast.cli.app import parse
from holdfast.cli.app import run as run_words
from holdfast.cli.command_line import UsageError
from holdfast.cli.subcommands.logs import last_lines
from holdfast.cli.suggestions import COMMANDS, OPTIONS

from tests.sdk.rest.test_rest import Service


def refusal(typed: str) -> UsageError:
    with pytest.raises(UsageError) as refused:
        parse(typed.split())
    return refused.value


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("kill sb", "holdfast rm"),
        ("start sb", "holdfast run"),
        ("attach sb", "holdfast logs -f"),
        ("build --push .", "image save"),
        ("ssh sb", "holdfast shell"),
        ("bash sb", "holdfast shell"),
        ("scp a sb:/b", "holdfast cp"),
        ("delete sb", "holdfast rm"),
        ("port-forward sb 80", "holdfast port"),
        ("describe sb", "holdfast inspect"),
        ("system", "holdfast doctor"),
        ("prune", "rm --all"),
        ("serve", "holdfast up"),
        ("crate host", "`holdfast create`"),
        ("exce sb ls", "`holdfast exec`"),
        ("lst", "`holdfast list`"),
        ("image pul x", "`holdfast image pull`"),
        ("create host --lifetme 5", "--lifetime"),
        ("create host --timeout 5", "--ready-timeout"),
        ("create host --timeout 5", "--lifetime"),
        ("run -v /a:/b host ls", "holdfast cp"),
        ("run --volume=/a:/b host ls", "holdfast cp"),
        ("run -itv /a:/b host ls", "holdfast cp"),
        ("run -p 80:80 host ls", "holdfast port"),
        ("run --gpus all host ls", "gpu=1"),
        ("exec --privileged sb ls", "ordinary container"),
        ("run --cap-add SYS_ADMIN host ls", "ordinary container"),
        ("run --pull sometimes host ls", "always, missing, never"),
        ("commit -c CMD sb x", "run has -e, -w and -u"),
        ("commit --no-pause sb x", "of one instant"),
        ("load -i x.tar", "image import FILE NAME"),
        ("logs -t sb", "without times"),
        ("login r.example.com", "skopeo login"),
        ("exec", "SANDBOX is missing"),
        ("run", "IMAGE is missing"),
        ("port sb", "PORT is missing"),
        ("cp a", "TARGET is missing"),
        ("rm -l", "-l needs a value"),
        ("list extra", "'extra' is an unexpected argument"),
        ("exec --timeout soon sb ls", "--timeout SECONDS must be a number from 0"),
        ("run --network=host host ls", "--network must be one of none, bridge, internet"),
        ("list --quiet=yes", "--quiet takes no value"),
    ],
)
def test_the_first_line_names_the_equivalent(typed: str, named: str) -> None:
    why = refusal(typed)
    assert named in str(why)
    assert why.usage.startswith("usage: holdfast")
    words = typed.split()
    if words[0] in ("exec", "run", "create", "cp", "list", "port", "rm"):
        assert f"holdfast {words[0]} " in why.usage, "the usage of that command"


def test_an_error_names_the_word_that_was_not_read_as_a_network() -> None:
    why = refusal("create --network foo host")
    assert "'host' is an unexpected argument" in str(why)
    meaning = "--network takes one of none, bridge, internet; without a value it means internet"
    assert why.hint == f"{meaning}: 'foo' was read as the next argument"
    assert refusal("create host more").hint == ""
    assert refusal("create --network none host more").hint == ""


def test_a_network_that_is_none_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_words(["run", "--network", "host", "python:3.12", "true"]) == 2
    assert "--network takes one of none, bridge, internet" in capsys.readouterr().err


@pytest.mark.parametrize("typed", ["run --net foo true", "create --net foo"])
def test_an_error_about_the_image_names_the_possible_networks(
    typed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Service() as service:
        service.answers = [(404, {"code": "image_not_found", "detail": "there is no image foo", "hint": "check the name"})]
        monkeypatch.setenv("HOLDFAST_URL", service.url)
        monkeypatch.setenv("HOLDFAST_API_KEY", "key")
        assert run_words(typed.split()) == 125
        first, second = capsys.readouterr().err.splitlines()
        assert "there is no image foo" in first
        assert "--net takes one of none, bridge, internet" in second
        assert run_words(["create", "foo"]) == 125
        assert "check the name" in capsys.readouterr().err


def test_no_suggestion_is_an_existing_command_or_option() -> None:
    for word in COMMANDS:
        refusal(word)
    assert not {"--env", "--name", "--rm"} & OPTIONS.keys()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("run -it --rm host bash -l", {"stdin": True, "tty": True, "rm": True, "image": "host", "argv": ["bash", "-l"]}),
        ("run --name=web -m512m --cpus=1.5 host true", {"id": "web", "memory": "512m", "cpu": "1.5", "argv": ["true"]}),
        ("run -dit host", {"detach": True, "tty": True, "argv": None}),
        ("run -e A=1 -eB=2 --env C=3 host env -e", {"env": ["A=1", "B=2", "C=3"], "argv": ["env", "-e"]}),
        ("run --network host true", {"network": "internet", "image": "host", "argv": ["true"]}),
        ("run --network none host true", {"network": "none", "image": "host"}),
        ("run --network bridge host true", {"network": "bridge", "image": "host"}),
        ("run --entrypoint sh --ulimit nofile=9 host -c x", {"entrypoint": "sh", "ulimit": ["nofile=9"], "c": None, "argv": ["-c", "x"]}),
        ("run --entrypoint=sh --rm host --rm", {"rm": True, "argv": ["--rm"]}),
        ("run host -c x", {"c": "x", "argv": None}),
        ("run --rm host -- -x", {"rm": True, "image": "host", "argv": ["-x"]}),
        ("container exec sb ls -l", {"sandbox": "sb", "argv": ["ls", "-l"]}),
        ("exec -w /tmp -u 0 sb ls -w", {"cwd": "/tmp", "user": "0", "argv": ["ls", "-w"]}),
        ("exec --workdir /tmp --interactive sb cat", {"cwd": "/tmp", "stdin": True}),
        ("ps -aq", {"all": True, "quiet": True}),
        ("ps -a --no-trunc --filter label=a=b", {"filter": ["label=a=b"]}),
        ("container ls", {"quiet": False}),
        ("images -q", {"quiet": True}),
        ("pull python:3.12", {"name": "python:3.12"}),
        ("rmi a b", {"name": ["a", "b"]}),
        ("rm -fv a b", {"force": True, "sandbox": ["a", "b"]}),
        ("logs -f -n 5 sb", {"follow": True, "tail": 5, "command_id": None}),
        ("logs --tail=all sb id", {"tail": None, "command_id": "id"}),
        ("cp -aL a sb:b", {"follow_link": True, "source": "a", "target": "sb:b"}),
        ("cp -- -a sb:b", {"source": "-a"}),
        ("stats --no-stream a b", {"no_stream": True, "sandbox": ["a", "b"]}),
    ],
)
def test_command_lines_of_docker_are_parsed(typed: str, expected: dict[str, Any]) -> None:
    found = parse(typed.split())
    assert {name: getattr(found, name) for name in expected} == expected


def test_last_lines() -> None:
    chunks = [Chunk(1, b"one\ntw"), Chunk(2, b"o\nthree\n"), Chunk(1, b"four\nfive\n")]
    joined = [b"".join(chunk.data for chunk in last_lines(chunks, count)) for count in range(7)]
    assert joined == [
        b"",
        b"five\n",
        b"four\nfive\n",
        b"three\nfour\nfive\n",
        b"two\nthree\nfour\nfive\n",
        *2 * [b"".join(c.data for c in chunks)],
    ]
    assert last_lines([Chunk(1, b"a\nb")], 1) == [Chunk(1, b"b")]
    assert last_lines([Chunk(1, b"a\nb")], 2) == [Chunk(1, b"a\nb")]
    assert last_lines([], 3) == []
