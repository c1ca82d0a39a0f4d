"""Feeds the agent's parsers randomly damaged input, for `HOLDFAST_FUZZ_SECONDS` each (20); `HOLDFAST_FUZZ_SEED` repeats a run."""

from __future__ import annotations

import io
import random
import tarfile

from tests.support.hostile import check_diff, check_tar, damaged, resum, rounds

SECONDS = 20.0

FORMS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)


def some_tar(rng: random.Random) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=rng.choice(FORMS), encoding="utf-8") as archive:
        for _ in range(rng.randint(0, 5)):
            info = tarfile.TarInfo("é/" * rng.randint(0, 2) + "n" * rng.randint(1, 90))
            info.type = rng.choice(KINDS)
            info.linkname = "l" * rng.randint(0, 90)
            info.mtime = rng.randint(0, 2**33 - 1)
            info.size = rng.randint(0, 1500) if info.isreg() else 0
            archive.addfile(info, io.BytesIO(rng.randbytes(info.size)))
    return out.getvalue()[: rng.choice((None, 2048, 4096))]


def some_lines(rng: random.Random) -> list[bytes]:
    return [rng.choice((b"a", b"b", b"", b"c\r", b" d", b"-- x", b"++ y")) + b"\n" for _ in range(rng.randint(0, 30))]


def some_diff(rng: random.Random, old: list[bytes], new: list[bytes]) -> bytes:
    import difflib

    head = rng.choice(
        (b"", b"diff --git a/f b/f\nindex 12..34 100644\n", b"diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", b"From x\n\n")
    )
    body = b"".join(difflib.diff_bytes(difflib.unified_diff, old, new, b"a/f", b"b/f", n=rng.randint(0, 3), lineterm=b"\n"))
    tail = rng.choice((b"", b"-- \n2.39\n", b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n"))
    return head + body + tail


def test_tar_reader() -> None:
    for rng in rounds("tar reader", SECONDS):
        data = damaged(some_tar(rng), rng)
        check_tar(resum(data) if rng.random() < 0.8 else data, (rng.choice((7, 511, 513)),))


def test_diffs() -> None:
    for rng in rounds("diffs", SECONDS):
        old, new = some_lines(rng), some_lines(rng)
        check_diff(damaged(some_diff(rng, old, new), rng), b"".join(old))
