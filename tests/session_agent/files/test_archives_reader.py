"""The tar parser: the same members that the standard library reads, and one typed error on everything else."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from holdfast_wire.archives.tar import END, Member, TarReader, header, padding
from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import check_tar, damaged, read_tar, recording, resum

NAME = st.binary(min_size=1, max_size=300).map(lambda b: b.replace(b"\0", b"0").replace(b"/", b"_"))
MEMBER = st.builds(
    Member,
    name=NAME,
    kind=st.sampled_from(["file", "directory", "symlink", "hardlink"]),
    size=st.integers(0, 1200),
    mode=st.integers(0, 0o7777),
    mtime_s=st.integers(-(2**31), 2**33),
    uid=st.integers(0, 2**32),
    gid=st.integers(0, 2**32),
    link=NAME,
)


def archive(members: list[Member]) -> tuple[bytes, list[Member]]:
    out, plain = bytearray(), []
    for member in members:
        is_file, is_link = member.kind == "file", member.kind in ("symlink", "hardlink")
        member = Member(
            member.name,
            member.kind,
            member.size if is_file else 0,
            member.mode,
            member.mtime_s,
            member.uid,
            member.gid,
            member.link if is_link else b"",
        )
        plain.append(member)
        out += header(member) + bytes(member.size + padding(member.size))
    return bytes(out) + END, plain


@given(st.lists(MEMBER, max_size=6), st.integers(1, 2000))
def test_the_reader_returns_what_the_writer_wrote(members: list[Member], piece: int) -> None:
    data, expected = archive(members)
    events, code = read_tar(data, piece)
    assert code == ""
    got = [Member(m.name.rstrip(b"/") if m.kind == "directory" else m.name, *[getattr(m, f) for f in FIELDS]) for m, _ in events]
    assert got == [Member(m.name.rstrip(b"/") if m.kind == "directory" else m.name, *[getattr(m, f) for f in FIELDS]) for m in expected]


FIELDS = ("kind", "size", "mode", "mtime_s", "uid", "gid", "link")
KINDS = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE}


@given(st.lists(MEMBER, max_size=5))
def test_the_standard_library_reads_what_we_write(members: list[Member]) -> None:
    data, expected = archive(members)
    with tarfile.open(fileobj=io.BytesIO(data), errorlevel=2) as opened:
        got = opened.getmembers()
    assert len(got) == len(expected)
    for theirs, ours in zip(got, expected, strict=True):
        assert theirs.name.encode("utf-8", "surrogateescape") == ours.name.rstrip(b"/")
        assert (theirs.type, theirs.size, theirs.mode, theirs.mtime) == (KINDS[ours.kind], ours.size, ours.mode, ours.mtime_s)
        assert (theirs.uid, theirs.gid) == (ours.uid, ours.gid)
        assert theirs.linkname.encode("utf-8", "surrogateescape") == ours.link


@given(st.lists(MEMBER, max_size=5), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_we_read_what_the_standard_library_writes(members: list[Member], form: int) -> None:
    data, expected = written_by_tarfile(members, form)
    events, code = read_tar(data)
    assert code == ""
    assert [m.name.rstrip(b"/") for m, _ in events] == [m.name.rstrip(b"/") for m in expected]
    assert [(m.kind, m.size, m.mode, m.mtime_s, m.link) for m, _ in events] == [
        (m.kind, m.size, m.mode, m.mtime_s, m.link) for m in expected
    ]


def written_by_tarfile(members: list[Member], form: int) -> tuple[bytes, list[Member]]:
    _, expected = archive(members)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as opened:
        for member in expected:
            info = tarfile.TarInfo(member.name.decode("utf-8", "surrogateescape"))
            info.type, info.size, info.mode, info.mtime = KINDS[member.kind], member.size, member.mode, member.mtime_s
            info.linkname = member.link.decode("utf-8", "surrogateescape")
            opened.addfile(info, io.BytesIO(bytes(member.size)))
    return out.getvalue(), expected


@given(st.binary(max_size=3000))
def test_random_bytes_are_one_typed_error(junk: bytes) -> None:
    check_tar(junk)


@given(
    st.lists(MEMBER, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from([None, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_damaged_archives(members: list[Member], rng: Any, fix_checksums: bool, form: int | None) -> None:
    data = archive(members)[0] if form is None else written_by_tarfile(members, form)[0]
    data = damaged(data, rng)
    check_tar(resum(data) if fix_checksums else data, (511,))


def block(kind: bytes, size: int, name: bytes = b"n", raw_size: bytes | None = None) -> bytes:
    raw = bytearray(header(Member(name, "file", size=0))[:512])
    raw[156:157] = kind
    raw[124:136] = b"%011o\0" % size if raw_size is None else raw_size
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


def pax(body: bytes, kind: bytes = b"x") -> bytes:
    return block(kind, len(body)) + body + bytes(padding(len(body)))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (block(b"x", 2**30), "archive_limit"),
        (block(b"L", 2**30), "archive_limit"),
        (pax(b"9999 path=x\n") + block(b"0", 0) + END, "archive_invalid"),
        (pax(b"x path=x\n") + block(b"0", 0) + END, "archive_invalid"),
        (pax(b"10 path=xy") + block(b"0", 0) + END, "archive_invalid"),
        (pax(b"4 =\n") + END, "archive_invalid"),
        (pax(b"0 path=x\n") + block(b"0", 0) + END, "archive_invalid"),
        (pax(b"12 size=-10\n") + block(b"0", 0) + END, "archive_invalid"),
        (pax(b"30 size=99999999999999999999\n") + block(b"0", 0) + END, "archive_invalid"),
        (pax(b"22 GNU.sparse.major=1\n") + block(b"0", 0) + END, "archive_invalid"),
        (block(b"S", 0) + END, "archive_invalid"),
        (block(b"0", 0, raw_size=b"\xff" * 12) + END, "archive_invalid"),
        (block(b"0", 0, raw_size=b"\x80" + b"\xff" * 11) + END, "archive_invalid"),
        (block(b"0", 0, raw_size=b"9" * 12) + END, "archive_invalid"),
        (pax(b"11 path=aa\n") + END, "archive_invalid"),
        (pax(b"11 path=aa\n" * 60_000), "archive_invalid"),
        (block(b"0", 0) * 51 + END, "archive_limit"),
        (block(b"0", 2**33), "archive_limit"),
    ],
)
def test_hostile_headers(data: bytes, code: str) -> None:
    events, got = read_tar(data)
    assert got == code
    assert sum(len(content) for _, content in events) == 0


def test_endless_headers_are_not_kept_in_memory() -> None:
    reader = TarReader()
    sink = recording(reader, [])
    next(sink)
    for number in range(2000):
        sink.send(pax(b"16 key%05d=abc\n" % number))
    assert reader._over == {}


def test_links_and_directories_have_no_content_whatever_their_size_field() -> None:
    data = b"".join(block(kind, 1000) for kind in (b"1", b"2", b"3", b"4", b"5", b"6")) + END
    events, code = read_tar(data)
    assert code == ""
    assert [m.size for m, _ in events] == [0] * 6


def test_content_of_members_of_unknown_kind_is_skipped() -> None:
    events, code = read_tar(block(b"V", 600) + b"x" * 600 + bytes(padding(600)) + block(b"0", 0, b"after") + END)
    assert code == ""
    assert [(m.kind, m.name) for m, _ in events] == [("other", b"n"), ("file", b"after")]


def test_a_global_header_names_no_member() -> None:
    events, code = read_tar(pax(b"17 path=/etc/evil\n".replace(b"17", b"18"), b"g") + block(b"0", 0, b"honest") + END)
    assert (code, events[0][0].name) == ("", b"honest")
