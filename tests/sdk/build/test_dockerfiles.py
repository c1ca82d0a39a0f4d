"""Reading Dockerfiles: the form of instructions, variables, stages, and what is refused with the line where it stands."""

from __future__ import annotations

import pytest
from holdfast import DockerfileError
from holdfast._build.config import Config
from holdfast._build.instructions import command_of, flags_of, healthcheck_of, is_script, json_list, mount_of, pairs
from holdfast._build.lines import Line, read
from holdfast._build.stages import Plan, plan
from holdfast._build.words import expand, expand_heredoc, expand_words, split_raw

SHELL = ["/bin/sh", "-c"]


def lines(text: str) -> list[tuple[int, str, str]]:
    return [(line.number, line.name, line.words) for line in read(text.encode()).lines]


def planned(text: str, target: str = "", **arguments: str) -> Plan:
    return plan(read(text.encode()), arguments, "amd64", target)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a", [(1, "FROM", "a")]),
        ("from a", [(1, "FROM", "a")]),
        ("\ufeffFROM a\r\nRUN b\r\n", [(1, "FROM", "a"), (2, "RUN", "b")]),
        ("# syntax=docker/dockerfile:1\n\n# c\nFROM a\n  # c\n\tRUN  b  c ", [(4, "FROM", "a"), (6, "RUN", "b  c")]),
        ("FROM a\nRUN x && \\\n  # comment\n\n  y \\\n  && z\nUSER u", [(1, "FROM", "a"), (2, "RUN", "x &&   y   && z"), (7, "USER", "u")]),
        ("FROM a\nRUN x \\  \n y", [(1, "FROM", "a"), (2, "RUN", "x  y")]),
        ("FROM a\nRUN x \\", [(1, "FROM", "a"), (2, "RUN", "x")]),
        ("# escape=`\nFROM a\nRUN dir `\n c:\\", [(2, "FROM", "a"), (3, "RUN", "dir  c:\\")]),
        ("FROM\ta\nENV\ta\tb", [(1, "FROM", "a"), (2, "ENV", "a\tb")]),
        (
            "FROM a\nRUN echo '#no comment' # but this is passed on",
            [(1, "FROM", "a"), (2, "RUN", "echo '#no comment' # but this is passed on")],
        ),
    ],
)
def test_reads_lines(text: str, expected: list[tuple[int, str, str]]) -> None:
    assert lines(text) == expected


def test_reads_heredocs() -> None:
    text = "FROM a\nRUN <<EOF\n#!/bin/sh\n\\\nFROM b\nEOF\n"
    text += "COPY <<-A <<'B' /t/\n\tone $X\n\tA\ntwo $X\nB\nRUN cat <<X | tr a b && echo '<<no'\nx\nX\nUSER u"
    file = read(text.encode())
    assert [(line.name, [(one.name, one.text, one.expands) for one in line.heredocs]) for line in file.lines] == [
        ("FROM", []),
        ("RUN", [("EOF", "#!/bin/sh\n\\\nFROM b\n", True)]),
        ("COPY", [("A", "one $X\n", True), ("B", "two $X\n", False)]),
        ("RUN", [("X", "x\n", True)]),
        ("USER", []),
    ]
    run = file.lines[1]
    assert is_script(command_of(run, run.words, SHELL, run.heredocs))
    piped = file.lines[3]
    assert command_of(piped, piped.words, SHELL, piped.heredocs) == [*SHELL, "cat <<X | tr a b && echo '<<no'\nx\nX\n"]


@pytest.mark.parametrize("text", ["RUN echo $((1<<2))", "RUN cat <<<word", "ENV a=<<EOF", "RUN echo 'a <<EOF'", 'RUN echo "a <<EOF"'])
def test_what_is_no_heredoc(text: str) -> None:
    assert read(f"FROM a\n{text}\nUSER u".encode()).lines[1].heredocs == ()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "no instructions"),
        ("# only\n", 1, "no instructions"),
        ("RUN x", 1, "RUN stands before FROM"),
        ("ARG a", 1, "there is no FROM"),
        ("FROM a\nFORM b", 2, "there is no instruction FORM"),
        ("FROM a\n\nRUN <<E\nx", 3, "the heredoc E has no end"),
        ("FROM a AS", 1, "is not understood"),
        ("FROM a AS 1x", 1, "cannot be the name of a stage"),
        ("FROM a AS b\nFROM a as B", 2, "two stages b"),
        ("FROM $X", 1, "has no value"),
        ("ARG X=\nFROM ${X:?name-it}", 2, "X: name-it"),
        ("FROM --platform=linux/arm64 a", 1, "linux/arm64 is not supported"),
        ("FROM --nope a", 1, "there is no such flag"),
        ("FROM a\nCOPY --from=2 x y", 2, "there is no stage 2"),
        ("FROM a\nCOPY [x] y", 2, "not a JSON list"),
        ("# escape=x\nFROM a", 1, "escape must be"),
        ("FROM a\nRUN a\0b", 2, "NUL"),
    ],
)
def test_refuses_with_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(DockerfileError, match=message) as refused:
        planned(text)
    assert refused.value.line == line


def test_refuses_bytes_that_are_not_utf_8() -> None:
    with pytest.raises(DockerfileError, match="not UTF-8") as refused:
        read(b"FROM a\nRUN \xff")
    assert refused.value.line == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A", "one"), ("${A}", "one"), ("x${A}y", "xoney"), ("$none", ""), ("${none:-d}", "d"), ("${E:-d}", "d"), ("${E-d}", ""),
        ("${A:+y}", "y"), ("${E:+y}", ""), ("${E+y}", "y"), ("${none:-${A}}", "one"), ("${none:-$A$A}", "oneone"), ("\\$A", "$A"),
        ("'$A'", "$A"), ('"$A"', "one"), ('"a b"', "a b"), ('"\\"x\\""', '"x"'), ("a\\ b", "a b"), ("$", "$"), ("a$", "a$"), ("$-", "$-"),
        ("${P#*/}", "b/c.tar"), ("${P##*/}", "c.tar"), ("${P%/*}", "a/b"), ("${P%%/*}", "a"), ("${P/b/x}", "a/x/c.tar"),
        ("${P//a/-}", "-/b/c.t-r"),
    ],
)  # fmt: skip
def test_expands(text: str, expected: str) -> None:
    assert expand(text, {"A": "one", "E": "", "P": "a/b/c.tar"}, 1) == expected


@pytest.mark.parametrize("text", ["${", "${A", "${}", "'a", '"a', "${A:x}", "${A:?}${none:?no}"])
def test_refuses_wrong_variables(text: str) -> None:
    with pytest.raises(DockerfileError):
        expand(text, {"A": "one"}, 1)


def test_words() -> None:
    assert expand_words("80 $P '9 0'", {"P": "81 82"}, 1) == ["80", "81", "82", "9 0"]
    assert split_raw("a=b 'c d'=e f\\ g", 1) == ["a=b", "'c d'=e", "f\\ g"]
    assert expand_heredoc("\"$A\" '$A' \\$A \\n", {"A": "x"}, 1) == "\"x\" 'x' $A \\n"


def test_pairs() -> None:
    assert pairs(Line(1, "ENV", 'a=b c="d e" f='), "\\") == [("a", "b"), ("c", '"d e"'), ("f", "")]
    assert pairs(Line(1, "ENV", "name  a b=c"), "\\") == [("name", "a b=c")]
    for words in ("", "name", "a=b c", "=x"):
        with pytest.raises(DockerfileError):
            pairs(Line(1, "ENV", words), "\\")


def test_forms_of_commands() -> None:
    assert command_of(Line(1, "CMD", ""), '["a", "b"]', SHELL) == ["a", "b"]
    assert command_of(Line(1, "CMD", ""), "['a']", SHELL) == [*SHELL, "['a']"]
    assert json_list('["a", 1]') is None
    with pytest.raises(DockerfileError):
        command_of(Line(1, "RUN", ""), "[]", SHELL)


def test_stages() -> None:
    found = planned(
        "ARG V=3\nFROM base:$V AS One\nFROM one AS two\nFROM other\nCOPY --from=two /a /b\n"
        "RUN --mount=type=bind,from=one,target=/x y\nFROM z"
    )
    assert [(stage.base, stage.name, stage.of_stage) for stage in found.stages] == [
        ("base:3", "one", None),
        ("one", "two", 0),
        ("other", "", None),
        ("z", "", None),
    ]
    assert [stage.number for stage in found.wanted] == [3], "stages that the target does not need are not built"
    assert [stage.number for stage in planned("FROM a AS x\nFROM b\nFROM c\nCOPY --from=x . .", "2").wanted] == [0, 2]
    assert planned("ARG V=3\nFROM base:$V", V="4").stages[0].base == "base:4"
    with pytest.raises(DockerfileError, match="--target takes one of a, stage-1"):
        planned("FROM x AS a\nFROM y", "no")


def test_flags() -> None:
    found = flags_of(Line(1, "COPY", "--link --from=a --exclude=x --exclude=y b c"), frozenset({"link", "from", "exclude"}))
    assert (found.boolean("link"), found.values["from"], found.lists["exclude"], found.rest) == (True, "a", ["x", "y"], "b c")
    with pytest.raises(DockerfileError, match="twice"):
        flags_of(Line(1, "COPY", "--from=a --from=b c d"), frozenset({"from"}))
    with pytest.raises(DockerfileError, match="not supported"):
        flags_of(Line(1, "COPY", "--parents c d"), frozenset({"from"}), {"parents": "copy one by one"})


def test_mounts() -> None:
    found = mount_of(Line(1, "RUN", ""), "type=secret,id=$N,mode=0400", {"N": "key"}, "\\")
    assert (found.kind, found.target, found.mode) == ("secret", "/run/secrets/key", 0o400)
    for text in ("type=ssh", "type=cache", "type=bind,nope=1,target=/x", "type=cache,target=/x,mode=9", "type=secret"):
        with pytest.raises(DockerfileError):
            mount_of(Line(1, "RUN", ""), text, {}, "\\")


def test_configuration() -> None:
    config = Config.of({"Env": ["A=1=2"], "Cmd": ["base"], "WorkingDir": "/a"})
    config.set_entrypoint(["e"])
    assert "Cmd" not in config.to_map(), "the command of the base image was for the base's entrypoint"
    config.set_command(["c"])
    config.set_entrypoint(["f"])
    config.set_workdir("../b/./c", 1)
    config.expose(["80", "90-91/UDP"], 1)
    assert config.to_map() == {
        "Env": ["A=1=2"],
        "Cmd": ["c"],
        "Entrypoint": ["f"],
        "WorkingDir": "/b/c",
        "ExposedPorts": {"80/tcp": {}, "90/udp": {}, "91/udp": {}},
    }
    for word in ("x", "70000", "9-8", "80/quic"):
        with pytest.raises(DockerfileError):
            config.expose([word], 1)


def test_healthchecks() -> None:
    assert healthcheck_of(Line(1, "HEALTHCHECK", "--interval=1m30s --retries=3 CMD curl -f x || exit 1"), SHELL) == {
        "Test": ["CMD-SHELL", "curl -f x || exit 1"],
        "Interval": 90_000_000_000,
        "Retries": 3,
    }
    assert healthcheck_of(Line(1, "HEALTHCHECK", "NONE"), SHELL) == {"Test": ["NONE"]}
    for words in ("", "CMD", "NONE x", "--interval=5 CMD a", "curl"):
        with pytest.raises(DockerfileError):
            healthcheck_of(Line(1, "HEALTHCHECK", words), SHELL)


def test_only_flags_name_stages() -> None:
    text = "FROM a AS one\nFROM a AS two\nRUN --mount=type=bind,from=one,target=/m x --from=7 --from='Ann B' && y --mount=from=two\n"
    made = planned(f"{text}COPY --link --from=0 /a /b")
    assert [stage.number for stage in made.wanted] == [0, 1]
    assert planned("FROM a\nRUN git log --from=7").stages[0].needs == set()
    with pytest.raises(DockerfileError, match="no stage 7"):
        planned("FROM a\nCOPY --from=7 /a /b")
