# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The instructions of a Dockerfile that change files: RUN, COPY and ADD, in a sandbox.

Owns what is in the sandbox while a step runs (mounts and secrets, which a snapshot must not contain), and what becomes of a failed command.
``building`` decides whether a step has to run.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import posixpath
import re
import stat
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast._sync.build_paths import NO_ENTRY, first_missing, is_directory, owner_of, place
from holdfast._sync.build_state import Building, StageState
from holdfast._sync.transfers import Transfer
from holdfast._build.context import Context, Entry, Source, digest
from holdfast._build.copying import Placing, is_archive, tar_source
from holdfast._build.errors import wrong
from holdfast._build.fetching import fetched, is_remote, refused_remote
from holdfast._build.instructions import Flags, Mount, command_of, flags_of, is_script, json_list, mount_of
from holdfast._build.lines import Line
from holdfast._build.patterns import Ignored, has_wildcard, part_pattern
from holdfast._build.words import expand, expand_heredoc, split_raw
from holdfast._errors import BuildError, RemoteFileExistsError, UserNotFoundError
from holdfast._transport.threads.events import finished

if TYPE_CHECKING:
    from holdfast import Sandbox

_TAIL_BYTES = 16 * 1024
_NETWORKS = ("default", "none", "host")
_RUN_FLAGS = frozenset({"mount", "network", "security"})
_COPY_FLAGS = frozenset({"from", "chown", "chmod", "link", "exclude"})
_ADD_FLAGS = frozenset({"chown", "chmod", "link", "exclude", "checksum", "unpack"})
_COPY_REFUSED = {"parents": "copy each directory to its own target", "keep-git-dir": "git is cloned with RUN git clone"}
_MODE = re.compile(r"0?[0-7]{3,4}")
_SECRET_MODE = 0o400


class RunStep:
    """One RUN."""

    def __init__(self, build: Building, state: StageState, line: Line) -> None:
        self._build, self._state, self._line = build, state, line
        refused = {"device": "sandboxes have no devices"}
        self._flags = flags_of(line, _RUN_FLAGS, refused)
        self._values, self._escape = state.values, build.opened.file.escape
        self._mounts = [mount_of(line, text, self._values, self._escape) for text in self._flags.lists.get("mount", [])]
        self._network = self._flags.values.get("network", "default")
        if self._network not in _NETWORKS:
            raise wrong(line.number, f"RUN --network={self._network:.40} is not known", "write default, none or host")
        if self._flags.values.get("security", "sandbox") != "sandbox":
            raise wrong(line.number, "RUN --security=insecure is not supported: a step has the rights of a sandbox")
        self._command = command_of(line, self._flags.rest, state.config.shell, line.heredocs)
        self._output = bytearray()

    def perform(self) -> None:
        """Run it, or take the result of an earlier build."""
        with contextlib.ExitStack() as held:
            self._perform([self._bound(mount, held) for mount in self._mounts])

    def _perform(self, binds: Sequence[tuple[list[Source], str] | None]) -> None:
        state, config = self._state, self._state.config
        block = self._network == "none" or self._build.request.block_network
        variables = self._build.run_environment(state)
        material = ["RUN", self._command, config.user, config.workdir, variables, block, [str(mount) for mount in self._mounts],
                    [bound[1] if bound else "" for bound in binds]]  # fmt: skip

        def run(sandbox: Sandbox) -> None:
            extra: dict[str, str] = {}
            mounted: list[Mounted] = []
            try:
                for mount, bound in zip(self._mounts, binds, strict=True):
                    mounted.append(Mounted(self._build, self._state, self._line, mount))
                    extra |= mounted[-1].begin(sandbox, bound[0] if bound else [])
                self._run(sandbox, variables | self._build.proxies() | extra)
            finally:
                for one in reversed(mounted):
                    one.end(sandbox)

        self._build.step(state, material, run, line=self._line.number, block_network=block)

    def _run(self, sandbox: Sandbox, env: dict[str, str]) -> None:
        command, line = self._command, self._line
        script = ""
        if is_script(command):
            script = f"/.build-{os.urandom(8).hex()}"
            sandbox.files.write(script, command[1], mode=0o755)
            command = [script]
        try:
            process = sandbox.start(
                command[0],
                *command[1:],
                cwd=self._state.config.workdir,
                env=env,
                user=self._state.config.user or 0,
                timeout=self._build.request.timeout or float("inf"),
                stdin=False,
                outlive="kill",
                stderr="stdout",
                max_output_bytes=_TAIL_BYTES,
                keep="tail",
            )
            text = codecs.getincrementaldecoder("utf-8")("replace")
            for chunk in process:
                self._output += chunk.data
                del self._output[:-_TAIL_BYTES]
                self._build.tell("output", line.number, self._state.stage.title, text.decode(chunk.data))
            result = process.wait()
        except UserNotFoundError as why:
            raise wrong(line.number, f"USER {self._state.config.user:.60}: {why.message}", "create the user in a RUN before") from None
        finally:
            if script:
                sandbox.files.remove(script, missing_ok=True)
        if result.exit_code != 0 or result.timed_out:
            what, fault = "ran out of time" if result.timed_out else f"ended with exit code {result.exit_code}", "workload"
            if result.cause is not None and not result.timed_out:
                what, fault = f"{what}: {result.cause.message or result.cause.reason}", result.cause.fault
            tail, instruction = self._output.decode("utf-8", "replace"), f"RUN {self._flags.rest}"
            message = f"{self._build.opened.path}:{line.number}: {instruction[:200]} {what}"
            raise BuildError(message, line=line.number, instruction=instruction, exit_code=result.exit_code, output=tail, fault=fault)

    def _bound(self, mount: Mount, held: contextlib.ExitStack) -> tuple[list[Source], str] | None:
        """The files of a bind mount, and a digest or key of them."""
        if mount.kind != "bind":
            return None
        if mount.stage:
            sandbox, key = self._build.source_sandbox(self._state, mount.stage, self._line.number)
            return remote_sources(sandbox, mount.source or "/", self._line.number, held), key
        try:
            sources = finished(self._build.opened.context.sources, mount.source or ".")
            return sources, finished(digest, sources)
        except (OSError, ValueError) as why:
            raise _no_source(self._line, mount.source, why) from None


class Mounted:
    """One ``--mount`` of a RUN, while it runs. A snapshot taken afterwards contains nothing of it."""

    def __init__(self, build: Building, state: StageState, line: Line, mount: Mount) -> None:
        self._build, self._state, self._line, self._mount = build, state, line, mount
        self._made = self._saved = self._target = ""

    def begin(self, sandbox: Sandbox, sources: Sequence[Source]) -> dict[str, str]:
        """Put at the target what the mount shows there; returns variables for the command."""
        mount, env, secret = self._mount, dict[str, str](), b""
        if mount.kind == "secret":
            found = self._build.request.secrets.get(mount.source)
            if found is None and mount.required:
                raise wrong(self._line.number, f"the secret {mount.source:.60} is not given", f"--secret id={mount.source:.60},src=FILE")
            if found is None:
                return {}
            secret = found
            if mount.env:
                env = {mount.env: found.decode("utf-8", "surrogateescape")}
            if not mount.target:
                return env
        target = posixpath.normpath(posixpath.join(self._state.config.workdir, mount.target))
        if target == "/":
            raise wrong(self._line.number, "RUN --mount cannot have / as target")
        self._made = first_missing(sandbox, target)
        if not self._made:
            self._saved = f"/.build-{os.urandom(8).hex()}"
            sandbox.files.copy(target, self._saved)
            sandbox.files.remove(target, recursive=True)
        self._target = target
        placing = Placing(target, (mount.uid, mount.gid) if mount.kind != "bind" else None)
        if mount.kind == "secret":
            mode = stat.S_IFREG | (_SECRET_MODE if mount.mode is None else mount.mode)
            sources = [Source("", False, [Entry("", mode, len(secret), time.time(), open=lambda: io.BytesIO(secret))])]
        elif mount.kind != "bind":
            usual = 0o1777 if mount.kind == "tmpfs" else 0o755
            sources = [Source("", True, [Entry("", stat.S_IFDIR | (usual if mount.mode is None else mount.mode), mtime=time.time())])]
        placing.add(sources, into=False)
        place(sandbox, placing)
        return env

    def end(self, sandbox: Sandbox) -> None:
        """Put back what was at the target before. Directories that were made above it stay if the command has put something there."""
        if self._target:
            sandbox.files.remove(self._target, recursive=True, missing_ok=True)
            above = posixpath.dirname(self._target)
            with contextlib.suppress(RemoteFileExistsError):
                while self._made and len(above) >= len(self._made):
                    sandbox.files.remove(above, missing_ok=True)
                    above = posixpath.dirname(above)
        if self._saved:
            sandbox.files.move(self._saved, self._target)


class CopyStep:
    """One COPY or ADD."""

    def __init__(self, build: Building, state: StageState, line: Line) -> None:
        self._build, self._state, self._line = build, state, line
        self._flags: Flags = flags_of(line, _COPY_FLAGS if line.name == "COPY" else _ADD_FLAGS, _COPY_REFUSED)
        self._escape, self._values = build.opened.file.escape, state.values
        words = json_list(self._flags.rest)
        words = split_raw(self._flags.rest, line.number, self._escape) if words is None else words
        self._words = [word if word.startswith("<<") else self._expanded(word) for word in words]
        if len(self._words) < 2:
            raise wrong(line.number, f"{line.name} needs a source and a target")
        self._exclude = Ignored("\n".join(self._flags.lists.get("exclude", [])))
        self._chown = self._expanded(self._flags.values.get("chown", ""))
        chmod = self._expanded(self._flags.values.get("chmod", ""))
        if chmod and not _MODE.fullmatch(chmod):
            raise wrong(line.number, f"{line.name} --chmod={chmod:.40} is not supported", "write it in digits: --chmod=755")
        self._mode = int(chmod, 8) if chmod else None
        self._from = self._expanded(self._flags.values.get("from", ""))

    def _expanded(self, text: str) -> str:
        return expand(text, self._values, self._line.number, self._escape)

    def perform(self) -> None:
        """Copy, or take the result of an earlier build."""
        line, state = self._line, self._state
        *texts, target = self._words
        with contextlib.ExitStack() as held:
            if self._from:
                sandbox, key = self._build.source_sandbox(state, self._from, line.number)
                material: object = [key, texts]
                if not (self._build.request.use_cache and self._build.is_cached(state, self._material(material))):
                    sources = [one for text in texts for one in remote_sources(sandbox, text, line.number, held)]
                else:
                    sources = []
            else:
                sources = [one for text in texts for one in self._local(text, held)]
                material = finished(digest, sources)
            sources = [self._without_excluded(one) for one in sources]
            if len(sources) > 1 and not target.endswith("/") and not all(one.is_dir for one in sources) and target not in (".", ".."):
                hint = f"write {target:.60}/"
                raise wrong(line.number, f"{line.name} of several sources needs a directory as target, which ends with /", hint)

            def copy(into: Sandbox) -> None:
                owner = owner_of(into, self._chown, line.number) if self._chown else None
                path = posixpath.normpath(posixpath.join(state.config.workdir, target)).replace("//", "/")
                directory = target.endswith(("/", "/.")) or target in (".", "..") or len(sources) > 1 or is_directory(into, path)
                placing = Placing(path, owner, self._mode)
                placing.add(sources, into=directory)
                place(into, placing, directory=directory)

            self._build.step(state, self._material(material), copy, line=line.number)

    def _material(self, sources: object) -> list[object]:
        exclude = self._flags.lists.get("exclude", [])
        return ["COPY", sources, self._words[-1], self._state.config.workdir, self._chown, self._mode, exclude]

    def _local(self, text: str, held: contextlib.ExitStack) -> list[Source]:
        line = self._line
        document = next((one for one in line.heredocs if text.lstrip("<-").strip("\"'") == one.name), None) if "<<" in text else None
        if document is not None:
            body = expand_heredoc(document.text, self._values, line.number, self._escape) if document.expands else document.text
            data = body.encode("utf-8", "surrogateescape")
            return [Source(document.name, False, [Entry("", stat.S_IFREG | 0o644, len(data), time.time(), open=lambda: io.BytesIO(data))])]
        if line.name == "ADD" and (why := refused_remote(text)):
            raise wrong(line.number, f"ADD {text:.200} is not supported", why)
        context = self._build.opened.context
        if line.name == "ADD" and is_remote(text):
            file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            return [finished(fetched, text, self._flags.values.get("checksum", ""), file, line.number)]
        try:
            sources = finished(context.sources, text)
        except (OSError, ValueError) as why:
            raise _no_source(line, text, why) from None
        if line.name == "ADD" and self._flags.values.get("unpack", "true") in ("", "true", "1"):
            return [self._unpacked(context, one, text, held) for one in sources]
        return sources

    def _unpacked(self, context: Context, source: Source, text: str, held: contextlib.ExitStack) -> Source:
        opened = source.entries[0].open if source.entries else None
        if source.is_dir or opened is None:
            return source
        file = held.enter_context(opened())
        if not finished(is_archive, file):
            return source
        try:
            return finished(tar_source, file)
        except (ValueError, OSError) as why:
            raise wrong(self._line.number, f"ADD {text:.200}: {why}") from None

    def _without_excluded(self, source: Source) -> Source:
        if not self._exclude.rules:
            return source
        return Source(source.name, source.is_dir, [one for one in source.entries if not one.path or not self._exclude(one.path)])

    @staticmethod
    def make_directory(sandbox: Sandbox, path: str, user: str, line: int) -> None:
        """Create a directory of WORKDIR with those above it; the user of the image owns what is created."""
        if is_directory(sandbox, path):
            return
        placing = Placing(path, owner_of(sandbox, user, line) if user else None)
        placing.add([Source("", True, [Entry("", stat.S_IFDIR | 0o755, mtime=time.time())])], into=False)
        place(sandbox, placing)


def remote_sources(sandbox: Sandbox, text: str, line: int, held: contextlib.ExitStack) -> list[Source]:
    """What a source means in another stage or image: copied out of its sandbox, with owners."""
    path = posixpath.normpath("/" + text)
    paths = _globbed(sandbox, path) if has_wildcard(path) else [path]
    found: list[Source] = []
    for one in paths:
        try:
            entry = sandbox.files.stat(one)
        except NO_ENTRY:
            raise wrong(line, f"there is no {text:.200} to copy from") from None
        file = held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        with Transfer(sandbox._attached(), "download", {"path": one}) as transfer:
            while data := transfer.read():
                finished(file.write, data)
            transfer.closed()
        file.seek(0)
        found.append(finished(tar_source, file, posixpath.basename(one), is_dir=entry.is_dir))
    if not found:
        raise wrong(line, f"nothing matches {text:.200}")
    return found


def _globbed(sandbox: Sandbox, pattern: str) -> list[str]:
    found = ["/"]
    for part in pattern.strip("/").split("/"):
        match, below = part_pattern(part), list[str]()
        for folder in found:
            try:
                names = [one.name for one in sandbox.files.list(folder)]
            except NO_ENTRY:
                continue
            below += [posixpath.join(folder, name) for name in sorted(names) if match.fullmatch(name)]
        found = below
    return found


def _no_source(line: Line, text: str, why: Exception) -> Exception:
    reason = why.strerror if isinstance(why, OSError) else str(why)
    return wrong(
        line.number, f"{line.name} {text:.200}: {reason}", "sources lie in the build context, and .dockerignore may leave them out"
    )
