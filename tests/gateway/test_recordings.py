"""Recordings in the gateway: where they are kept, how one that was cut off is continued, and what happens while the store is away."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
