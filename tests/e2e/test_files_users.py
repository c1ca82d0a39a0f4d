"""`files.*` with a `user`: that user's permissions apply, new files belong to that user, and the agent keeps its own identity."""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from holdfast import RemoteFileNotFoundError, RemotePermissionError, Sandbox, SandboxClient, UserNotFoundError

from tests.node.ociimages import directory, file, oci_layout, tar
from tests.package.roots import debian
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "root", "bash")

USER = "user"
ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\ndaemon:x:1:1::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    "etc/group": "root:x:0:\nusers:x:100:\nmembers:x:200:user\nuser:x:1000:\n",
}
FILES = [
    directory("srv/own", uid=1000, gid=1000), directory("srv/closed", 0o700), directory("srv/open", 0o777),
    directory("srv/shared", 0o770, gid=100), directory("srv/members", 0o770, gid=200), file("srv/closed/secret", "secret", 0o600),
    file("srv/private", "secret", 0o600), file("srv/mine", "x", 0o600, uid=1000), file("srv/open/others", "others", 0o666),
    file("srv/open/fixed", "fixed", 0o644), file("srv/group", "group", 0o660, gid=100),
]  # fmt: skip


@pytest.fixture(scope="module")
def box(client: SandboxClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("image")
    root = debian(folder / "root")
    for name, text in ACCOUNTS.items():
        (root / name).write_text(text)
    layer = subprocess.run(["tar", "-C", root, "-c", "."], capture_output=True, check=True).stdout
    client.images.import_(oci_layout(folder / "layout", [layer, tar(FILES)]), "with-users")
    with client.create_sandbox("with-users", ready_timeout_s=60) as sandbox:
        yield sandbox


def owner(box: Sandbox, path: str) -> str:
    entry = box.files.stat(path)
    return f"{entry.uid}:{entry.gid}"


@pytest.mark.parametrize(("user", "owned"), [(USER, "1000:1000"), (1000, "1000:1000"), ("1000", "1000:1000"), ("user:users", "1000:100")])
def test_new_files_belong_to_the_user(box: Sandbox, tmp_path: Path, user: str | int, owned: str) -> None:
    (tmp_path / "tree/inner").mkdir(parents=True)
    (tmp_path / "tree/inner/leaf").write_text("leaf")
    files, folder = box.files, f"/srv/own/{str(user).replace(':', '-')}{type(user).__name__}"
    files.mkdir(folder, user=user)
    files.write(f"{folder}/new/dir/file", "x", user=user)
    files.write(f"{folder}/in-place", "x", user=user, atomic=False)
    files.append(f"{folder}/appended", "x", user=user)
    files.upload(tmp_path / "tree/inner/leaf", f"{folder}/uploaded", user=user)
    files.upload(tmp_path / "tree", f"{folder}/tree", user=user)
    files.move(f"{folder}/in-place", f"{folder}/moved", user=user)
    files.chmod(f"{folder}/moved", 0o600, user=user)
    made = {entry.path: f"{entry.uid}:{entry.gid}" for entry in files.list(folder, recursive=True)}
    assert set(made.values()) == {owned}
    assert len(made) == 9
    assert files.read(f"{folder}/moved", user=user) == b"x"
    files.remove(folder, recursive=True, user=user)
    assert not files.exists(folder)


def test_operations_without_permission_are_refused(box: Sandbox, tmp_path: Path) -> None:
    files = box.files
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/leaf").write_text("leaf")
    attempts: list[Callable[[], object]] = [
        lambda: files.read("/srv/private", user=USER),
        lambda: files.read("/srv/closed/secret", user=USER),
        lambda: files.list("/srv/closed", user=USER),
        lambda: files.stat("/srv/closed/secret", user=USER),
        lambda: files.exists("/srv/closed/secret", user=USER),
        lambda: files.download("/srv/closed", tmp_path / "out", user=USER),
        lambda: files.download("/srv/private", tmp_path / "out", user=USER),
        lambda: files.write("/srv/private", "x", user=USER),
        lambda: files.write("/srv/private", "x", user=USER, atomic=False),
        lambda: files.write("/srv/new", "x", user=USER),
        lambda: files.write("/srv/open/fixed", "x", user=USER),
        lambda: files.append("/srv/private", "x", user=USER),
        lambda: files.mkdir("/srv/new", user=USER),
        lambda: files.move("/srv/private", "/srv/open/private", user=USER),
        lambda: files.remove("/srv/private", user=USER),
        lambda: files.remove("/srv/closed", recursive=True, user=USER),
        lambda: files.chmod("/srv/open/others", 0o600, user=USER),
        lambda: files.upload(tmp_path / "tree", "/srv/new", user=USER),
        lambda: files.upload(tmp_path / "tree", "/srv/closed", user=USER),
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises(RemotePermissionError) as refused:
            attempt()
        assert refused.value.code == "permission_denied", number
    assert files.read("/srv/private") == files.read("/srv/closed/secret") == b"secret"
    assert files.read("/srv/open/fixed") == b"fixed"
    with pytest.raises(RemoteFileNotFoundError):
        files.read("/srv/open/none", user=USER)


def test_writing_a_file_of_another_user_keeps_its_owner(box: Sandbox) -> None:
    box.files.write("/srv/open/others", "changed", user=USER)
    assert (box.files.read("/srv/open/others"), owner(box, "/srv/open/others")) == (b"changed", "0:0")
    box.files.write("/srv/group", io.BytesIO(b"members"), user="user:users")
    assert (box.files.read("/srv/group"), owner(box, "/srv/group")) == (b"members", "0:100")
    box.files.write("/srv/mine", "mine", user=USER)  # in a directory where this user cannot create files
    assert (box.files.read("/srv/mine"), owner(box, "/srv/mine")) == (b"mine", "1000:0")


def test_the_users_groups_are_applied(box: Sandbox) -> None:
    with pytest.raises(RemotePermissionError):
        box.files.write("/srv/shared/file", "x", user=USER)
    box.files.write("/srv/shared/file", "x", user="user:users")
    assert owner(box, "/srv/shared/file") == "1000:100"
    box.files.write("/srv/members/file", "x", user=USER)
    assert owner(box, "/srv/members/file") == "1000:1000"


def test_root_and_the_default_user_have_all_permissions(box: Sandbox) -> None:
    for user in (None, "root", 0):
        assert box.files.read("/srv/closed/secret", user=user) == b"secret"
        box.files.write("/srv/closed/new", "x", user=user)
        assert owner(box, "/srv/closed/new") == "0:0"
        box.files.remove("/srv/closed/new", user=user)


def test_a_patch_with_a_users_permissions(box: Sandbox) -> None:
    diff = "--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+line\n"
    assert box.apply_patch(diff, cwd="/srv/own", user=USER).success
    assert owner(box, "/srv/own/made") == "1000:1000"
    with pytest.raises(RemotePermissionError):
        box.apply_patch(diff, cwd="/srv/closed", user=USER)
    with pytest.raises(RemotePermissionError):
        box.apply_patch(diff, cwd="/srv", user=USER)


def test_unknown_users(box: Sandbox) -> None:
    for user in ("nobody-of-that-name", "user:no-such-group"):
        with pytest.raises(UserNotFoundError):
            box.files.read("/srv/open/fixed", user=user)


def test_concurrent_operations_of_several_users(box: Sandbox) -> None:
    """Concurrent transfers of several users on shared threads: each runs with its own user's identity."""
    wrong: list[str] = []

    def work(user: str | None, expected: str, number: int) -> None:
        for turn in range(20):
            path = f"/srv/open/{number}-{turn}"
            box.files.write(path, "x", user=user)
            if (seen := f"{box.files.stat(path).uid}") != expected:
                wrong.append(f"{path}: {seen}")
            try:
                box.files.read("/srv/closed/secret", user=user)
                refused = False
            except RemotePermissionError:
                refused = True
            if refused is not (user is not None):
                wrong.append(f"{user} was {'' if refused else 'not '}refused")

    users = [(None, "0"), (USER, "1000"), ("daemon", "1"), ("nobody", "65534")]
    threads = [threading.Thread(target=work, args=(*pair, number)) for number, pair in enumerate(users * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_over_rest(box: Sandbox, stack: Stack, rest: httpx.Client) -> None:
    with SandboxClient(stack.url, stack.key, transport="rest") as client:
        files = client.get_sandbox(box.id).files
        files.write("/srv/own/by-rest", "x", user=USER)
        assert owner(box, "/srv/own/by-rest") == "1000:1000"
        assert files.read("/srv/own/by-rest", user=1000) == b"x"
        assert "by-rest" in [entry.name for entry in files.list("/srv/own", user=USER)]
        for attempt in (lambda: files.read("/srv/private", user=USER), lambda: files.list("/srv/closed", user=USER)):
            with pytest.raises(RemotePermissionError):
                attempt()
        with pytest.raises(RemotePermissionError):
            files.write("/srv/new", "x", user=USER)
    answer = rest.get(f"/sandboxes/{box.id}/files", params={"path": "/srv/private", "user": "1000"})
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
