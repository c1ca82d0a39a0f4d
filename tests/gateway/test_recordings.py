"""Recordings in the gateway: where they are kept, how one that was cut off is continued, and what happens while the store is away."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.recordings import retention
from gateway.recordings.files import Folder, Objects, RecordingFiles, files_of, name_of, stored
from gateway.recordings.lines import line, note, position
from gateway.recordings.recorder import _HELD_BYTES, Recorder, _Recording
from gateway.settings import RecordingSettings
from gateway.use_cases.background import BackgroundTasks

INCARNATION = "1" * 16


@pytest.fixture(params=["folder", "objects"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> RecordingFiles:
    return Folder(tmp_path / "recordings") if request.param == "folder" else Objects(f"memory://{secrets.token_hex(8)}")


def test_a_place_for_recordings(files: RecordingFiles) -> None:
    name = name_of("ada", f"sb-1.{INCARNATION}")
    assert (files.size(name), list(files.lines(name)), files.tail(name), files.names(""), stored(files, name)) == (0, [], b"", [], None)
    files.write(name, "meta.json", b'{"recording_id": "x"}')
    for number in range(12):
        files.append(name, b"%d\n" % number)
    content = b"".join(b"%d\n" % number for number in range(12))
    assert (b"".join(files.lines(name)), files.size(name), files.tail(name)) == (content, len(content), content)
    assert b"".join(files.lines(name, 4)) == content[4:]
    assert files.names(name_of("ada")) == [f"sb-1.{INCARNATION}"]
    assert files.names(name_of("bob")) == []
    found = stored(files, name)
    assert found is not None
    assert (found["recording_id"], found["ended_at"], found["bytes"]) == ("x", None, len(content))
    files.write(name, "end.json", b'{"ended_at": 7}')
    assert (stored(files, name) or {})["ended_at"] == 7
    files.remove(name)
    files.remove(name)
    assert stored(files, name) is None


def test_another_process_appends_after_the_last_object() -> None:
    url, name = f"memory://{secrets.token_hex(8)}", name_of("ada", f"sb-1.{INCARNATION}")
    Objects(url).append(name, b"1\n")
    Objects(url).append(name, b"2\n")
    assert b"".join(Objects(url).lines(name)) == b"1\n2\n"


@pytest.mark.parametrize(
    "id_", ["..", "a/b", f"../x.{INCARNATION}", "sb-1", f"sb-1.{INCARNATION}/..", f"SB.{INCARNATION}", f"a\n.{INCARNATION}"]
)
def test_what_is_no_id_leads_nowhere(id_: str) -> None:
    with pytest.raises(ValueError, match="not the id"):
        name_of("ada", id_)


def test_places_by_setting(tmp_path: Path) -> None:
    assert files_of("off") is None
    assert isinstance(files_of(str(tmp_path)), Folder)
    with pytest.raises(ValueError, match="HOLDFAST_RECORDINGS"):
        files_of("nothing-of-this-name://x")


def test_lines_and_the_position_after_them() -> None:
    facts: list[dict[str, Any]] = [
        {"type": "command_started", "time": 1.0, "id": "c", "command": b"\xff", "seq": 4},
        {"type": "output", "time": 1.0, "id": "c", "data": "ä".encode(), "seq": 4, "n": 4},
        {"type": "files_written", "time": 1.0, "path": "\ud800", "n": 5},
    ]
    content = b"".join(line(fact, "e") for fact in facts)
    first, second, third = map(orjson.loads, content.splitlines())
    assert ("seq" in first, first["command_b64"], second["data"], third["path"]) == (False, "/w==", "ä", "?")
    assert position(content) == ("e", 5)
    assert position(content[:-3]) == ("e", 4), "a line that was cut off is none"
    assert position(b'half a line"}\n' + content) == ("e", 5)
    assert position(content + note("branched", parent="x")) is None, "positions before it are of another agent"
    assert position(b"") is None


@given(st.binary(max_size=300))
def test_any_tail_has_a_position_or_none(tail: bytes) -> None:
    found = position(tail)
    assert found is None or (isinstance(found[0], str) and isinstance(found[1], int))


def test_a_recording_stops_at_its_limit_and_says_so() -> None:
    recording = _Recording("m", "n", 1000)
    for number in range(100):
        recording.add([{"type": "output", "time": 1.0, "id": "c", "data": b"x" * 100, "n": number}], "e")
    recording.add([{"type": "command_ended", "time": 1.0, "id": "c", "n": 100}], "e")
    kinds = [orjson.loads(one)["type"] for one in recording.waiting]
    assert kinds.count("gap") == 1
    assert kinds[-1] == "command_ended", "what ran is still recorded"
    assert recording.size_bytes < 2000


class Broken(Folder):
    """A folder that fails while ``away``."""

    away = False

    def append(self, name: str, data: bytes) -> None:
        if self.away:
            raise OSError(5, "Input/output error")
        super().append(name, data)


@contextlib.contextmanager
def _recorder(files: RecordingFiles) -> Iterator[Recorder]:
    unused: Any = None
    yield Recorder(RecordingSettings(flush_s=0.01), files, unused, unused, unused, BackgroundTasks(), "r")


async def test_a_store_that_is_away_costs_a_marked_gap_and_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.recordings.recorder._RETRY_S", 0.01)
    files = Broken(tmp_path)
    with _recorder(files) as recorder:
        name = name_of("ada", f"sb-1.{INCARNATION}")
        recording = recorder._recordings["m"] = _Recording("m", name, 1 << 30)
        files.away = True
        for number in range(100):
            recording.add([{"type": "output", "time": 1.0, "id": "c", "data": b"x" * 100_000, "n": number}], "e")
            if number % 20 == 0:
                await recorder._flush()
        assert recording.waiting_bytes <= _HELD_BYTES
        assert recording.lost_bytes > 0
        files.away = False
        while recording.waiting:
            await asyncio.sleep(0)
            await recorder._flush()
        recording.add([{"type": "command_ended", "time": 1.0, "id": "c", "n": 100}], "e")
        await recorder._flush()
        kinds = [orjson.loads(one)["type"] for one in b"".join(files.lines(name)).splitlines()]
        assert kinds[-2:] == ["gap", "command_ended"]
        assert 0 < kinds.count("output") < 100


class Hanging(Folder):
    """A folder whose calls do not return until ``answers`` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers = threading.Event()

    def append(self, name: str, data: bytes) -> None:
        self.answers.wait(60)
        super().append(name, data)


async def test_a_store_that_hangs_holds_up_no_fact_and_no_memory(tmp_path: Path) -> None:
    files = Hanging(tmp_path)
    with _recorder(files) as recorder:
        name = name_of("ada", f"sb-1.{INCARNATION}")
        recording = recorder._recordings["m"] = _Recording("m", name, 1 << 30)
        recording.add([{"type": "output", "time": 1.0, "id": "c", "data": b"first", "n": 0}], "e")
        flushing = asyncio.create_task(recorder._flush())
        began = time.monotonic()
        for number in range(1, 1000):
            recording.add([{"type": "output", "time": 1.0, "id": "c", "data": b"x" * 10_000, "n": number}], "e")
            await asyncio.sleep(0)
        assert time.monotonic() - began < 30, "the store waits for a minute"
        assert not flushing.done()
        assert recording.waiting_bytes <= _HELD_BYTES
        files.answers.set()
        await flushing
        await recorder._flush()
        recording.add([{"type": "command_ended", "time": 1.0, "id": "c", "n": 1000}], "e")
        await recorder._flush()
        kinds = [orjson.loads(one)["type"] for one in b"".join(files.lines(name)).splitlines()]
        assert kinds[-2:] == ["gap", "command_ended"]


def _kept(files: RecordingFiles, owner: str, number: int, *, size: int, ended_at: float | None) -> str:
    name = name_of(owner, f"sb-{number}.{INCARNATION}")
    files.write(name, "meta.json", orjson.dumps({"started_at": 1.0}))
    files.append(name, b"x" * size)
    if ended_at is not None:
        files.write(name, "end.json", orjson.dumps({"ended_at": ended_at}))
    return name


def test_the_oldest_complete_recordings_of_an_owner_are_removed_beyond_the_limit(files: RecordingFiles) -> None:
    _kept(files, "ada", 1, size=100_000, ended_at=30.0)
    _kept(files, "ada", 2, size=100_000, ended_at=20.0)
    _kept(files, "ada", 3, size=300_000, ended_at=None)
    _kept(files, "ada", 4, size=100_000, ended_at=10.0)
    _kept(files, "bob", 5, size=900_000, ended_at=1.0)
    folder = name_of("ada")
    assert retention.trim(files, folder, 1_000_000) == 0
    assert retention.trim(files, folder, 550_000) == 1
    assert files.names(folder) == [f"sb-{n}.{INCARNATION}" for n in (1, 2, 3)], "the one that ended first"
    assert retention.trim(files, folder, 1) == 2
    assert files.names(folder) == [f"sb-3.{INCARNATION}"], "its sandbox lives"
    assert len(files.names(name_of("bob"))) == 1, "another owner's"


def test_recordings_are_removed_when_they_are_old(files: RecordingFiles) -> None:
    for number, ended_at in ((1, 10.0), (2, 100.0), (3, None)):
        _kept(files, "ada", number, size=10, ended_at=ended_at)
    folder = name_of("ada")
    files.write(f"{folder}/sb-2.{INCARNATION}", "end.json", b"[]")
    retention.expire(files, folder, 0.5)
    assert len(files.names(folder)) == 3
    retention.expire(files, folder, 50.0)
    assert files.names(folder) == [f"sb-2.{INCARNATION}"], "what cannot be read is left to its owner"


async def test_the_limit_is_kept_when_a_recording_ends(tmp_path: Path) -> None:
    files = Folder(tmp_path)
    _kept(files, "ada", 1, size=100_000, ended_at=10.0)
    unused: Any = None
    settings = RecordingSettings(flush_s=0.01, owner_bytes=50_000)
    recorder = Recorder(settings, files, unused, unused, unused, BackgroundTasks(), "r")
    name = name_of("ada", f"sb-2.{INCARNATION}")
    assert recorder._write([(name, b"x", None, 0)]) == (1, None)
    assert len(files.names(name_of("ada"))) == 2
    assert recorder._write([(name, b"x", {"ended_at": 20.0}, 0)]) == (1, None)
    assert files.names(name_of("ada")) == [f"sb-2.{INCARNATION}"]


async def test_a_branch_waits_for_what_another_replica_still_writes_of_its_parent(files: RecordingFiles) -> None:
    parent, branch = (name_of("ada", f"{one}.{INCARNATION}") for one in ("sb-1", "sb-2"))
    files.write(parent, "meta.json", b"{}")
    files.append(parent, note("recording_started") + line({"type": "command_started", "n": 1}, "e"))
    with _recorder(files) as recorder:
        copying = asyncio.create_task(recorder._continue_parent(branch, "ada", "sb-1", ("e", 2)))
        await asyncio.sleep(0.2)
        assert not files.size(branch)
        files.append(parent, line({"type": "command_ended", "n": 2}, "e"))
        await copying
    copied = [orjson.loads(text) for text in b"".join(files.lines(branch)).split()]
    assert [one["type"] for one in copied] == ["recording_started", "command_started", "command_ended", "branched"]
