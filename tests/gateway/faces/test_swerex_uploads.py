"""The zip archives that SWE-ReX's clients upload."""

from __future__ import annotations

import io
import zipfile

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.faces.swerex import uploads


def zipped(count: int) -> io.BytesIO:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number in range(count):
            archive.writestr(f"{number}", "x")
    stream.seek(0)
    return stream


def test_members_are_counted_before_their_list_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_MEMBERS", 10)
    monkeypatch.setattr(uploads, "_PIECE_BYTES", 7)
    assert len(uploads._opened(zipped(10)).infolist()) == 10
    many = zipped(11)
    monkeypatch.setattr(zipfile, "ZipFile", lambda content: pytest.fail("it was read"))
    with pytest.raises(HoldfastError, match="at most 10 members"):
        uploads._opened(many)
