"""Building images from Dockerfiles on the real stack: what each instruction does to files and configuration, the cache, and failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from holdfast import BuildError, BuildEvent, DockerfileError, ImageInfo, InvalidArgumentError, SandboxClient

from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = requires("namespaces", "root", "redis")


class Builder:
    """Builds in a directory, and runs commands in what was built."""

    def __init__(self, client: SandboxClient, directory: Path) -> None:
        self.client, self.directory = client, directory
        self.events: list[BuildEvent] = []

    def build(self, text: str, name: str = "built", **options: Any) -> ImageInfo:
        self.events.clear()
        return self.client.images.build(
            self.directory, name, dockerfile=text.encode(), on_event=self.events.append, block_network=True, **options
        )

    def output(self, script: str, name: str = "built") -> str:
        with self.client.create_sandbox(name) as sandbox:
            return sandbox.exec("sh", "-c", script).check().stdout

    def config(self, name: str = "built") -> dict[str, object]:
        answer = self.client._rest.request("GET", "/images/config", params={"name": name}).map()
        found: dict[str, object] = answer["config"]
        return found

    @property
    def cached(self) -> int:
        return sum(event.kind == "cached" for event in self.events)


@pytest.fixture
def builder(client: SandboxClient, tmp_path: Path) -> Iterator[Builder]:
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "src" / "app.py").write_text("print('app')\n")
    (tmp_path / "src" / "sub" / "run.sh").write_text("#!/bin/sh\necho run\n")
    (tmp_path / "src" / "sub" / "run.sh").chmod(0o755)
    yield Builder(client, tmp_path)
    for image in client.images.list():
        if image.name.startswith("built"):
            client.images.remove(image.name)


def test_files_and_configuration(builder: Builder) -> None:
    builder.build(
        """# syntax=docker/dockerfile:1
FROM host
ARG VERSION=1 OTHER
ENV APP=/srv/app V=v$VERSION
LABEL made.by="me and ${VERSION}"
WORKDIR $APP
COPY src ./
COPY --chown=12:34 --chmod=0640 src/app.py src/sub/run.sh /data/
COPY <<one <<"two" /data/docs/
$V
one
$V
two
RUN echo "$V $VERSION ${OTHER:-none} $(id -u) $PWD" > /data/run
USER 1000:1000
RUN id > /tmp/who
RUN ["/bin/sh", "-c", "umask 077; echo exec > /tmp/exec"]
SHELL ["/bin/sh", "-e", "-c"]
RUN false || true; echo on > /tmp/on
EXPOSE 80 90/udp
VOLUME /vol
STOPSIGNAL SIGINT
HEALTHCHECK --interval=5s CMD true
ENTRYPOINT ["python3"]
CMD ["app.py"]
""",
        build_args={"VERSION": "2"},
        labels={"more": "yes"},
    )
    script = (
        "cat /data/run /tmp/who /tmp/on; find /srv /data /vol /tmp/exec -printf '%p %y %m %U:%G %s\\n' | sort;"
        " cat /data/docs/one /data/docs/two; pwd"
    )
    assert builder.output(script).splitlines() == [
        "v2 2 none 0 /srv/app",
        "uid=1000(user) gid=1000(user) groups=1000(user)",
        "on",
        "/data d 755 12:34 4096",
        "/data/app.py f 640 12:34 13",
        "/data/docs d 755 0:0 4096",
        "/data/docs/one f 644 0:0 3",
        "/data/docs/two f 644 0:0 3",
        "/data/run f 644 0:0 21",
        "/data/run.sh f 640 12:34 19",
        "/srv d 755 0:0 4096",
        "/srv/app d 755 0:0 4096",
        "/srv/app/app.py f 644 0:0 13",
        "/srv/app/sub d 755 0:0 4096",
        "/srv/app/sub/run.sh f 755 0:0 19",
        "/tmp/exec f 600 1000:1000 5",
        "/vol d 755 0:0 4096",
        "v2",
        "$V",
        "/srv/app",
    ]
    assert builder.config() == {
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "APP=/srv/app", "V=v2"],
        "WorkingDir": "/srv/app",
        "User": "1000:1000",
        "Entrypoint": ["python3"],
        "Cmd": ["app.py"],
        "Labels": {"made.by": "me and 2", "more": "yes"},
        "ExposedPorts": {"80/tcp": {}, "90/udp": {}},
        "Volumes": {"/vol": {}},
        "StopSignal": "SIGINT",
        "Healthcheck": {"Test": ["CMD-SHELL", "true"], "Interval": 5_000_000_000},
        "Shell": ["/bin/sh", "-e", "-c"],
    }


def test_stages_and_archives(builder: Builder) -> None:
    def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid, member.gid = 7, 8
        return member

    with tarfile.open(builder.directory / "files.tar.gz", "w:gz") as archive:
        for path in (builder.directory / "src").iterdir():
            archive.add(path, path.name, filter=owned)
    (builder.directory / ".dockerignore").write_text("src\n!src/sub\n")
    builder.build(
        """FROM host AS one
RUN mkdir -p /out/d && echo a > /out/a && echo b > /out/d/b && ln -s a /out/l && chown 5:6 /out/a
FROM host AS unused
RUN false
FROM scratch
ADD files.tar.gz /unpacked/
ADD --chown=1 src/sub/run.sh /
COPY --from=one /out/ /copied
COPY --from=one --chown=9:9 /out/[a-c] /single/
COPY . /rest/
"""
    )
    with builder.client.create_sandbox("built") as sandbox:
        entries = {one.path: (one.type, one.uid, one.gid) for one in sandbox.files.list("/", recursive=True)}
    expected = {
        "/unpacked/app.py": ("file", 7, 8),
        "/unpacked/sub": ("directory", 7, 8),
        "/unpacked/sub/run.sh": ("file", 7, 8),
        "/run.sh": ("file", 1, 1),
        "/copied/a": ("file", 5, 6),
        "/copied/d/b": ("file", 0, 0),
        "/copied/l": ("symlink", 0, 0),
        "/single/a": ("file", 9, 9),
        "/rest/src/sub/run.sh": ("file", 0, 0),
        "/rest/files.tar.gz": ("file", 0, 0),
    }
    assert {path: entries.get(path) for path in expected} == expected
    assert "/rest/src/app.py" not in entries
    assert "/bin" not in entries, "an image from scratch has what was copied"


def test_steps_are_not_repeated(builder: Builder) -> None:
    text = "FROM host\nARG A=1\nCOPY src /src\nRUN date +%N > /when && echo $A > /a\nENV LATER=1\n"
    builder.build(text)
    first = builder.output("cat /when")
    os.utime(builder.directory / "src" / "app.py", (1, 1))
    builder.build(text + "CMD x\n")
    assert (builder.cached, builder.output("cat /when")) == (2, first), "neither times of files nor what comes later matter"
    builder.build(text, build_args={"A": "2"})
    assert builder.cached == 1
    assert builder.output("cat /a") == "2\n"
    (builder.directory / "src" / "app.py").write_text("changed")
    builder.build(text)
    assert builder.cached == 0
    builder.build(text, use_cache=False)
    assert builder.cached == 0
    assert all("build-step" not in image.name for image in builder.client.images.list())
    assert builder.client.images.prune() >= 4
    builder.build(text)
    assert builder.cached == 0


def test_mounts_leave_nothing(builder: Builder) -> None:
    builder.build(
        """FROM host
RUN mkdir -p /kept/d && echo k > /kept/d/f
RUN --mount=type=secret,id=key,required=true --mount=type=secret,id=word,env=WORD \\
    --mount=type=bind,source=src,target=/kept --mount=type=cache,target=/new/cache --mount=type=tmpfs,target=/kept2 \\
    stat -c '%a' /run/secrets/key > /seen && cat /run/secrets/key /kept/app.py >> /seen && echo $WORD >> /seen && touch /new/cache/x
""",
        secrets={"key": b"k1\n", "word": b"w1"},
    )
    assert builder.output("cat /seen /kept/d/f; ls -A /kept /run/secrets /new /kept2 2>&1; ls -dA /.build*; true").splitlines() == [
        "400",
        "k1",
        "print('app')",
        "w1",
        "k",
        "ls: cannot access '/run/secrets': No such file or directory",
        "ls: cannot access '/new': No such file or directory",
        "ls: cannot access '/kept2': No such file or directory",
        "/kept:",
        "d",
    ]
    with pytest.raises(DockerfileError, match="the secret key is not given"):
        builder.build("FROM host\nRUN --mount=type=secret,id=key,required=true true", use_cache=False)


def test_scripts_onbuild_and_base_images(builder: Builder) -> None:
    builder.build(
        'FROM host\nRUN <<E\n#!/usr/bin/env python3\nopen("/made", "w").write("by python")\nE\nONBUILD RUN echo trigger > /trigger\n'
        'ONBUILD ENV T=1\nENTRYPOINT ["/bin/base"]\nCMD base',
        "built-base",
    )
    assert builder.config("built-base")["OnBuild"] == ["RUN echo trigger > /trigger", "ENV T=1"]
    builder.build("FROM built-base\nRUN cat /trigger /made > /both")
    assert builder.output("cat /both; echo $T") == "trigger\nby python1\n"
    assert "OnBuild" not in builder.config()
    assert builder.config()["Cmd"] == ["/bin/sh", "-c", "base"]


def test_failures_say_where(builder: Builder) -> None:
    with pytest.raises(BuildError) as failed:
        builder.build("FROM host\nRUN true\n\nRUN echo said; \\\n  exit 7\n")
    why = failed.value
    assert (why.line, why.exit_code, why.output, why.instruction) == (4, 7, "said\n", "RUN echo said;   exit 7")
    assert why.fault == "workload"
    for text, line, message in (
        ("FROM host\nCOPY none /x", 2, "none: no such file in the context"),
        ("FROM host\nCOPY src /etc/passwd", 2, None),
        ("FROM host\nRUN true\nCOPY --from=localhost/none:1 a b", 3, "there is no image localhost/none:1"),
        ("FROM host\nCOPY --chown=nobody-here src /x", 2, "the image has no user nobody-here"),
        ("FROM host\nUSER nobody-here\nRUN true", 3, "nobody-here"),
        ("FROM host\nADD git@example.com:a/b /x", 2, "git clone"),
        ("FROM host\nADD http://127.0.0.1:1/x /x", 2, "127.0.0.1:1"),
        ("FROM host\nCOPY src/app.py src/sub/run.sh /x", 2, "ends with /"),
        ("FROM host\nFROM", 2, "is not understood"),
    ):
        with pytest.raises(Exception, match=message) as refused:
            builder.build(text)
        if message is not None:
            assert isinstance(refused.value, DockerfileError), text
            assert (refused.value.line, refused.value.path) == (line, "Dockerfile"), text
    assert [one for one in builder.client.list_sandboxes() if "build" in one.labels] == [], "no sandbox of a step is left"


def test_adds_files_over_http(builder: Builder) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(b"remote")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a/file.txt"
        builder.build(f"FROM host\nADD {url} /got/")
        with pytest.raises(DockerfileError, match="checksum"):
            builder.build(f"FROM host\nADD --checksum=sha256:00 {url} /got/")
        server.shutdown()
    assert builder.output("stat -c '%a %Y %s' /got/file.txt") == "600 1767225600 6\n"


def test_the_command_line(stack: Stack, builder: Builder) -> None:
    def holdfast(*words: str, program: str = "holdfast.cli", text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", program, *words]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=120, env=stack.environment(), cwd=builder.directory
        )

    (builder.directory / "Dockerfile").write_text("FROM host\nARG A\nRUN printf '\\033[2J%s\\n' $A\n")
    done = holdfast("build", "-t", "built:1", "-t", "built:2", "--build-arg", "A=hello", "--network", "none", ".")
    assert (done.returncode, done.stdout) == (0, "built:1\n"), done
    assert "[3/3] stage-0: RUN printf" in done.stderr
    assert "  \\x1b[2Jhello\n" in done.stderr, "what a command prints cannot control the terminal"
    shown = json.loads(holdfast("--json", "build", "-t", "built:1", ".").stdout)
    assert shown["name"] == "built:1"
    assert holdfast("image", "inspect", "built:2").returncode == 0
    quiet = holdfast("build", "-q", "-t", "built:3", "-", text="FROM host\nLABEL a=b\n")
    assert quiet.stdout.startswith("sha256:"), quiet
    (builder.directory / "Dockerfile").write_text("FROM host\nRUN exit 3\n")
    failed = holdfast("build", "--network", "none", ".")
    assert failed.returncode == 1
    assert "Dockerfile:2: RUN exit 3 ended with exit code 3" in failed.stderr
    for words, message in (
        (["--platform", "linux/s390x"], "this service runs"),
        (["--push"], "holdfast image save"),
        (["--network", "x"], "x"),
    ):
        refused = holdfast("build", *words, ".")
        assert refused.returncode == 2
        assert message in refused.stderr


def test_arguments_are_those_of_the_stage_that_a_stage_begins_with(builder: Builder) -> None:
    builder.build("FROM host AS one\nARG V=1 W=2\nFROM one\nARG W=3\nRUN echo $V $W > /seen\n")
    assert builder.output("cat /seen") == "1 3\n"


def test_directories_of_sandboxes_are_not_in_the_image(builder: Builder) -> None:
    builder.build("FROM scratch\nCOPY src/app.py /app.py\n", "built-small")
    assert "WorkingDir" not in builder.config("built-small")
    builder.build("FROM built-small\nCOPY src/app.py /two.py\n", "built-larger")
    builder.build("FROM host\nCOPY --from=built-small / /small\nCOPY --from=built-larger / /larger\n")
    kept = "dev etc proc run sys tmp"
    assert builder.output("cd /small; echo *; cd /larger; echo *") == f"app.py {kept}\napp.py {kept} two.py\n"


def test_a_base_image_may_copy_from_a_stage_that_nothing_else_needs(builder: Builder) -> None:
    builder.build("FROM host\nONBUILD COPY --from=late /made /copied\n", "built-on")
    builder.build("FROM host AS first\nRUN echo made > /made\nFROM first AS late\nFROM built-on\n")
    assert builder.output("cat /copied") == "made\n"


def test_a_step_that_was_ended_from_outside_says_why(builder: Builder) -> None:
    with pytest.raises(BuildError, match="exit code 137: the sandbox ran out of memory") as failed:
        builder.build("FROM host\nRUN python3 -c 'bytearray(1 << 31)'\n", memory="64Mi")
    assert (failed.value.exit_code, failed.value.fault) == (137, "workload")


def test_a_wrong_name_is_refused_before_anything_is_built(builder: Builder) -> None:
    with pytest.raises(InvalidArgumentError):
        builder.build("FROM host\nRUN true\n", "Built Wrong")
    assert builder.events == []


def test_steps_in_use_are_not_pruned(builder: Builder) -> None:
    builder.build("FROM scratch\nCOPY src /src\n", "built-pruned")
    names = [str(row["name"]) for row in builder.client._rest.request("GET", "/images", params={"steps": "true"}).map()["images"]]
    used = next(name for name in names if name.startswith("localhost/build-step:base-"))
    with builder.client.create_sandbox(used):
        assert builder.client.images.prune() > 0
        assert builder.client.images.prune() == 0
    # a sandbox that is deleted may use its image a moment longer
    until(lambda: builder.client.images.prune() == 1, deadline_s=60, what="the removal of the step that was in use")


def test_a_configuration_that_is_nested_deeply_is_refused(builder: Builder) -> None:
    builder.build("FROM host\nRUN true\n")
    body = '{"name": "built", "tag": "built-deep", "config": {"Healthcheck": ' + '{"x":' * 500 + "1" + "}" * 502
    answer = httpx.post(f"{builder.client.url}/images/tag", content=body, headers={"X-API-Key": builder.client.api_key}, verify=False)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")


def test_what_a_command_puts_beside_a_mount_stays(builder: Builder) -> None:
    builder.build(
        """FROM host
RUN --mount=type=cache,target=/new/cache/pip --mount=type=cache,target=/gone/cache/pip touch /new/cache/pip/x /new/cache/kept
"""
    )
    assert builder.output("find /new; test -e /gone || echo gone").split() == ["/new", "/new/cache", "/new/cache/kept", "gone"]


def test_every_user_writes_to_a_mounted_tmpfs(builder: Builder) -> None:
    builder.build("FROM host\nUSER 1000\nRUN --mount=type=tmpfs,target=/tmp touch /tmp/x && ls -ld /tmp > /var/tmp/seen\n")
    assert builder.output("cat /var/tmp/seen").startswith("drwxrwxrwt")


def test_output_is_text_also_where_it_comes_in_pieces(builder: Builder) -> None:
    builder.build("FROM host\nRUN printf '\\303'; sleep 0.3; printf '\\251\\n'\n")
    assert "".join(event.text for event in builder.events if event.kind == "output") == "é\n"


def test_the_processor_is_that_of_the_service(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    monkeypatch.setattr("platform.machine", lambda: "sparc64")
    builder.build(f"FROM --platform=linux/{machine} host\nARG TARGETARCH\nRUN echo $TARGETARCH > /seen\n")
    assert builder.output("cat /seen") == f"{machine}\n"
