"""The parser of diffs and the placing of hunks, without files: valid diffs give the exact result, all other input one typed error."""

from __future__ import annotations

import difflib
from contextlib import suppress

import pytest
from holdfast_wire.fast_dataclass import replace
from hypothesis import given
from hypothesis import strategies as st

from session_agent.agent.files.patches import unified_diff
from session_agent.agent.files.patches.diff_parser import parse
from session_agent.agent.files.patches.unified_diff import FilePatch, Hunk, PatchError, apply, prefix_depth

LINE = st.sampled_from([b"a", b"b", b"c", b"", b"  x", b"-- ", b"++ b", b"@@ -1 +1 @@", b"\r", b"d\r", b"\\ No", b"diff --git a/x b/x"])
TEXT = st.lists(LINE, max_size=30)


def make_diff(old: bytes, new: bytes, context: int = 3, name: bytes = b"f") -> bytes:
    """A diff as difflib makes it, with the marker for a missing final newline that difflib forgets."""
    lines = difflib.diff_bytes(difflib.unified_diff, lines_of(old), lines_of(new), b"a/" + name, b"b/" + name, n=context, lineterm=b"\n")
    return b"".join(line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)


def lines_of(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return [p + b"\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def parse_one(diff: bytes) -> FilePatch:
    (patch,) = parse(diff)
    return patch


@given(TEXT, TEXT, st.booleans(), st.booleans(), st.integers(0, 4))
def test_diffs_apply_to_the_exact_result(
    old_lines: list[bytes], new_lines: list[bytes], old_end: bool, new_end: bool, context: int
) -> None:
    old, new = (b"\n".join(lines) + (b"\n" if end and lines else b"") for lines, end in ((old_lines, old_end), (new_lines, new_end)))
    diff = make_diff(old, new, context)
    if old == new:
        assert diff == b""
        return
    result, notes = apply(parse_one(diff), old)
    assert result == new
    assert notes == []


@given(TEXT, TEXT, TEXT)
def test_a_shifted_file_gives_the_right_result_or_an_error(old: list[bytes], new: list[bytes], before: list[bytes]) -> None:
    first, second, shift = (b"".join(line + b"\n" for line in lines) for lines in (old, new, before))
    diff = make_diff(first, second)
    if not diff:
        return
    try:
        result, _ = apply(parse_one(diff), shift + first)
    except PatchError:
        return
    assert is_result_of(lines_of(shift + first), parse_one(diff).hunks, lines_of(result))


def is_result_of(lines: list[bytes], hunks: list[Hunk], result: list[bytes]) -> bool:
    """Whether ``result`` is ``lines`` with the hunks applied in order, at any places where they match."""
    if not hunks:
        return result == lines
    old, new = list(hunks[0].old), list(hunks[0].new)
    for at in range(len(lines) - len(old) + 1):
        if lines[:at] != result[:at]:
            return False
        fits = lines[at : at + len(old)] == old and result[at : at + len(new)] == new
        if fits and is_result_of(lines[at + len(old) :], hunks[1:], result[at + len(new) :]):
            return True
    return False


@given(st.binary(max_size=400))
def test_junk_is_a_diff_or_one_typed_error(junk: bytes) -> None:
    parse_and_apply(junk)


@given(TEXT, TEXT, st.data())
def test_damaged_diffs_are_diffs_or_one_typed_error(old: list[bytes], new: list[bytes], data: st.DataObject) -> None:
    diff = bytearray(b"diff --git a/f b/f\nnew mode 100755\n" + make_diff(b"\n".join(old), b"\n".join(new)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(diff)))
        diff[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    parse_and_apply(bytes(diff), b"\n".join(old))


def parse_and_apply(diff: bytes, original: bytes = b"a\nb\nc\n") -> None:
    try:
        patches = parse(diff)
        prefix_depth(patches)
    except PatchError:
        return
    assert patches
    for patch in patches:
        assert patch.old or patch.new
        with suppress(PatchError):
            apply(patch, original)


FILE = b"one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
HUNK = b"@@ -3,3 +3,3 @@ def f():\n three\n-four\n+FOUR\n five\n"
HEAD = b"--- a/f\n+++ b/f\n"


def test_an_offset_is_found_and_reported() -> None:
    result, notes = apply(parse_one(HEAD + HUNK), b"zero\n" + FILE)
    assert result == b"zero\n" + FILE.replace(b"four", b"FOUR")
    assert notes == ["hunk #1 applied at line 4 (offset 1 lines)"]


def test_later_hunks_expect_the_offset_of_those_before() -> None:
    block = b"x\ny\nz\n"
    old = b"start\n" + block + b"middle\n" + block
    diff = HEAD + b"@@ -1,2 +1,2 @@\n-start\n+START\n x\n@@ -6,3 +6,3 @@\n x\n-y\n+Y\n z\n"
    result, notes = apply(parse_one(diff), b"new first line\n" + old)
    assert result == b"new first line\nSTART\n" + block + b"middle\nx\nY\nz\n"
    assert notes == ["hunk #1 applied at line 2 (offset 1 lines)"]


def test_ambiguous_place_is_refused() -> None:
    with pytest.raises(PatchError, match=r"matches at several: 5, 12"):
        apply(parse_one(HEAD + b"@@ -1,3 +1,3 @@\n three\n-four\n+FOUR\n five\n"), b"\n\n" + FILE + FILE)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (FILE.replace(b"four", b"vier"), r"expects 'four\\n' at line 4, found 'vier\\n'"),
        (FILE.replace(b"four", b"  four"), "only white space differs"),
        (FILE.replace(b"four\n", b"four\r\n"), "only the line ends differ"),
        (FILE.replace(b"four", b"FOUR"), "its result is there already"),
        (b"one\n", "the file has only 1 lines"),
        (b"", "the file has only 0 lines"),
    ],
)
def test_messages_say_what_was_expected_and_found(file: bytes, message: str) -> None:
    with pytest.raises(PatchError, match=r"hunk #1 of b/f \(@@ -3,3 \+3,3 @@\)") as caught:
        apply(parse_one(HEAD + HUNK), file)
    assert message.replace("\\\\", "\\") in str(caught.value)


def test_no_fuzz() -> None:
    with pytest.raises(PatchError):
        apply(parse_one(HEAD + HUNK), FILE.replace(b"five", b"FIVE"))


def test_line_ends_follow_the_file() -> None:
    crlf = FILE.replace(b"\n", b"\r\n")
    result, notes = apply(parse_one(HEAD + HUNK), crlf)
    assert result == crlf.replace(b"four", b"FOUR")
    assert "CRLF" in notes[0]
    result, notes = apply(parse_one((HEAD + HUNK).replace(b"\n", b"\r\n")), FILE)
    assert result == FILE.replace(b"four", b"FOUR")
    result, notes = apply(parse_one((HEAD + HUNK).replace(b"\n", b"\r\n")), crlf)
    assert (result, notes) == (crlf.replace(b"four", b"FOUR"), [])


def test_line_ends_of_added_lines_follow_the_file_too() -> None:
    """A hunk that only adds lines has no line that shows whether a mail program has changed the diff; the other hunks do."""
    edited = FILE.replace(b"two\n", b"two\nnew\n").replace(b"six", b"SIX")
    diff = make_diff(FILE, edited, context=0)
    for file_end, diff_end in ((b"\r\n", b"\n"), (b"\n", b"\r\n")):
        result, notes = apply(parse_one(diff.replace(b"\n", diff_end)), FILE.replace(b"\n", file_end))
        assert result == edited.replace(b"\n", file_end)
        assert len(notes) == 2
    alone = make_diff(FILE, FILE.replace(b"two\n", b"two\nnew\r\n"), context=0)
    assert apply(parse_one(alone), FILE) == (FILE.replace(b"two\n", b"two\nnew\r\n"), []), "what the diff says"


def test_a_last_line_without_newline_gets_the_line_ends_of_the_file() -> None:
    old, new = b"one\ntwo", b"one\nTWO"
    diff = make_diff(old, new).replace(b"\n", b"\r\n")
    assert apply(parse_one(diff), old)[0] == new
    grown = make_diff(b"one\n", b"one\ntwo").replace(b"\n", b"\r\n")
    assert apply(parse_one(grown), b"one\n")[0] == b"one\ntwo"


def test_missing_final_newline_is_exact() -> None:
    marker = b"\\ No newline at end of file\n"
    assert apply(parse_one(HEAD + b"@@ -1 +1 @@\n-a\n" + marker + b"+b\n"), b"a")[0] == b"b\n"
    assert apply(parse_one(HEAD + b"@@ -1 +1 @@\n-a\n+b\n" + marker), b"a\n")[0] == b"b"
    assert apply(parse_one(HEAD + b"@@ -1,2 +1,2 @@\n-a\n+b\n c\n" + marker), b"a\nc")[0] == b"b\nc"
    with pytest.raises(PatchError, match="only the line ends differ"):
        apply(parse_one(HEAD + b"@@ -1 +1 @@\n-a\n+b\n"), b"a")


def test_blank_context_whose_space_was_stripped() -> None:
    assert apply(parse_one(HEAD + b"@@ -1,3 +1,3 @@\n a\n\n-c\n+C\n"), b"a\n\nc\n")[0] == b"a\n\nC\n"


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        (b"", "no file in this diff"),
        (b"just words\n", "no file in this diff"),
        (HUNK, "without a file header"),
        (HEAD, "no '@@' hunk"),
        (HEAD + b"@@ -1,9 +1,9 @@\n a\n", "ends early: 8 old and 8 new lines are missing"),
        (HEAD + b"@@ -1,9 +1,9 @@\n a\nprose\n", "ends early"),
        (HEAD + HUNK + b"+more\n", "more lines than its header states"),
        (HEAD + HUNK + b"\n-more\n", "more lines than its header states"),
        (HEAD + b"@@ nonsense @@\n", "malformed hunk header"),
        (HEAD + b"@@ -1,0 +1,0 @@\n", "is empty"),
        (b"--- /dev/null\n+++ /dev/null\n" + HUNK, "both names"),
        (b'--- "a/x" junk\n+++ b/x\n' + HUNK, "quoted"),
        (b"diff --git a/f b/f\nindex 1..2 100644\nGIT binary patch\n", "binary"),
        (b"diff --git a/f b/f\nBinary files a/f and b/f differ\n", "binary"),
        (b"diff --git a/f b/f\nindex 1..2\n", "changes nothing"),
        (b"diff --git a b c d\nnew mode 100755\n", "separated"),
    ],
)
def test_errors_of_malformed_diffs_name_the_cause(diff: bytes, message: str) -> None:
    with pytest.raises(PatchError) as caught:
        parse(diff)
    assert caught.value.malformed
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"--- a/f\t2024-01-01 00:00:00.000 +0000", b"a/f"),
        (b"--- a/with space\t", b"a/with space"),
        (b"--- a/with space", b"a/with space"),
        (b"--- a/f 2024-01-01 00:00:00", b"a/f"),
        (b'--- "a/\\303\\244 \\"q\\" \\t\\\\"', b'a/\xc3\xa4 "q" \t\\'),
        (b"--- a/f\r", b"a/f"),
    ],
)
def test_file_names_in_headers(line: bytes, name: bytes) -> None:
    assert parse_one(line + b"\n+++ b/f\n" + HUNK).old == name


def test_mail_around_a_diff_is_skipped() -> None:
    mail = b"From 1234 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] x\n\n- a list\n+ another\n---\n f | 2 +-\n\n"
    patches = parse(mail + b"diff --git a/f b/f\nindex 1..2 100644\n" + HEAD + HUNK + b"-- \n2.39.5\n\n" + mail + HEAD + HUNK)
    assert [p.new for p in patches] == [b"b/f", b"b/f"]


@pytest.mark.parametrize(
    ("names", "depth"),
    [
        (b"--- a/f\n+++ b/f\n", 1),
        (b"--- f\n+++ f\n", 0),
        (b"--- /dev/null\n+++ b/f\n", 1),
        (b"--- i/f\n+++ w/f\n", 1),
        (b"--- a/f\n+++ a/f\n", 0),
        (b"--- f.orig\n+++ f\n", 0),
    ],
)
def test_prefixes(names: bytes, depth: int) -> None:
    assert prefix_depth(parse(names + HUNK)) == depth


class CountedLine(bytes):
    """A line that counts how often one is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedLine.comparisons += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_hostile_repetition_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    in_file, in_hunk = 50_000, 20_000
    split = unified_diff._lines
    monkeypatch.setattr(unified_diff, "_lines", lambda data: [CountedLine(line) for line in split(data)])
    monkeypatch.setattr(CountedLine, "comparisons", 0)
    patch = parse_one(HEAD + f"@@ -1,{in_hunk + 1} +1,{in_hunk + 1} @@\n".encode() + b" x\n" * in_hunk + b"-y\n+z\n")
    patch.hunks = [replace(hunk, old=tuple(map(CountedLine, hunk.old)), new=tuple(map(CountedLine, hunk.new))) for hunk in patch.hunks]
    with pytest.raises(PatchError, match="expects 'y"):
        apply(patch, b"x\n" * in_file)
    assert 0 < CountedLine.comparisons < 10 * (in_file + in_hunk)
