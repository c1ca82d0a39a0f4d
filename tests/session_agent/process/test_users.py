"""Users as images and callers name them: the forms that `USER` of a Dockerfile may have, resolved without the image's libc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError

from session_agent.agent.process import users
from session_agent.agent.process.users import User, find_user


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "passwd").write_text("root:x:0:0::/root:/bin/sh\nbob:x:1234:1234::/home/bob:/bin/bash\n")
    (tmp_path / "group").write_text("root:x:0:\nbob:x:1234:\nextra:x:77:bob\n")
    return {"accounts": str(tmp_path / "passwd"), "group": str(tmp_path / "group")}


def test_a_user_with_a_group_has_that_group_and_no_other(files: dict[str, str]) -> None:
    bob = User("bob", 1234, 77, "/home/bob", "/bin/bash", (77,))
    for wanted in ("bob:extra", "bob:77", "1234:77", "1234:extra"):
        assert find_user(wanted, **files) == bob
    assert find_user("4000", **files) == find_user(4000, **files) == User("4000", 4000, 0, "/", "", (0,))
    assert find_user("4000:5000", **files) == User("4000", 4000, 5000, "/", "", (5000,))
    assert find_user("bob:", **files) == find_user("bob", **files) == User("bob", 1234, 1234, "/home/bob", "/bin/bash", (77, 1234))


def test_a_group_alone_means_root_with_that_group(files: dict[str, str]) -> None:
    assert find_user(":extra", **files) == User("root", 0, 77, "/root", "/bin/sh", (77,))


def test_digits_are_an_id_and_never_a_name(files: dict[str, str]) -> None:
    """As docker does it (``GetExecUser`` in moby/sys/user: "they will not be evaluated as usernames")."""
    with open(files["accounts"], "a") as accounts, open(files["group"], "a") as groups:
        accounts.write("5000:x:1700:1700::/home/five:/bin/sh\n")
        groups.write("88:x:99:\n")
    assert find_user("5000", **files).uid == find_user(5000, **files).uid == 5000
    assert find_user("bob:88", **files).gid == 88


def test_commented_groups_and_ids_in_other_scripts_are_ignored(files: dict[str, str]) -> None:
    with open(files["accounts"], "a") as accounts, open(files["group"], "a") as groups:
        accounts.write("odd:x:\u00b2:5::/:/bin/sh\nodd:x:6:\u00b2::/:/bin/sh\nhuge:x:" + "9" * 5000 + ":5::/:/bin/sh\n")
        groups.write("#old:x:99:bob\nodd:x:\u00b2:bob\nhuge:x:" + "9" * 5000 + ":bob\n")
    assert find_user("bob", **files) == User("bob", 1234, 1234, "/home/bob", "/bin/bash", (77, 1234))
    for wanted in ("odd", "huge", "bob:odd", "bob:huge"):
        with pytest.raises(HoldfastError, match="has no"):
            find_user(wanted, **files)


def test_entries_may_lack_their_last_fields_and_have_blanks_around_them(files: dict[str, str]) -> None:
    """As docker's parser accepts them; the accounts of small images are often written by hand."""
    with open(files["group"], "a", newline="") as groups:
        groups.write("wheel:x:10:bob,crlf\r\n")
    with open(files["accounts"], "a", newline="") as accounts:
        accounts.write("short:x:1500:1600\n  crlf:x:1502:1502::/crlf:/bin/sh\r\nhomed:x:1501:1601:a\u2028comment:/srv")
    assert find_user("short", **files) == User("short", 1500, 1600, "/", "", (1600,))
    assert find_user("crlf", **files) == User("crlf", 1502, 1502, "/crlf", "/bin/sh", (10, 1502))
    assert find_user("homed", **files) == User("homed", 1501, 1601, "/srv", "", (1601,))


@pytest.mark.parametrize(
    "wanted", ["bob:nobodys", "ghost:77", ":ghosts", "bob:77:1", "bob:-1", "bob:4294967295", "²", "bob:²", "9" * 5000, "bob:" + "9" * 5000]
)
def test_unknown_and_invalid_users_and_groups(files: dict[str, str], wanted: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        find_user(wanted, **files)
    assert refused.value.code == "user_not_found"


def test_a_pipe_in_place_of_the_accounts_does_not_block(tmp_path: Path) -> None:
    """A command may put one there; an ordinary open would block the agent until a writer comes."""
    accounts = tmp_path / "passwd"
    os.mkfifo(accounts)
    assert find_user(0, accounts=str(accounts), group=str(accounts)).uid == 0
    with pytest.raises(HoldfastError, match="no user"):
        find_user("bob", accounts=str(accounts), group=str(accounts))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The users for whom the files were read."""
    seen: list[object] = []
    read = users._read_user

    def counting(wanted: str | int | None, accounts: str, group: str) -> User:
        seen.append(wanted)
        return read(wanted, accounts, group)

    monkeypatch.setattr(users, "_read_user", counting)
    monkeypatch.setattr(users, "_cache", {})
    return seen


def test_accounts_are_read_again_once_either_file_has_changed(
    files: dict[str, str], reads: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users, "_SETTLED_NS", -(1 << 60))  # as if the files were old
    for _ in range(3):
        assert find_user("bob", **files).groups == (77, 1234)
    assert reads == ["bob"]
    with open(files["group"], "a") as group:
        group.write("wheel:x:10:bob\n")
    assert find_user("bob", **files).groups == (10, 77, 1234)
    os.unlink(files["accounts"])
    with pytest.raises(HoldfastError):
        find_user("bob", **files)
    assert reads == ["bob"] * 3
    for number in range(100):
        find_user(number, **files)
    assert len(users._cache) <= 16


def test_files_that_changed_just_now_are_not_cached(files: dict[str, str], reads: list[object]) -> None:
    """Two changes within one tick of the kernel's clock leave the same time, and may leave the same size."""
    find_user("bob", **files)
    find_user("bob", **files)
    assert reads == ["bob", "bob"]
