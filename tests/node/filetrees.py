"""Random changes of a directory tree, made by the same code in a sandbox and in a plain directory of this machine, which is its model.

Owns the operations, the choice of one by a seed, and the description of a tree that both sides are compared by.
"""

from __future__ import annotations

import random

NAMES = ("a", "b", "c", "d")

CHANGE = '''
import errno, os, shutil, stat

def change(root, kind, path, other, text):
    """One operation below root; what is not possible in this tree does nothing."""
    here, there = os.path.join(root, path), os.path.join(root, other)
    try:
        if kind == "write":
            os.makedirs(os.path.dirname(here), exist_ok=True)
            with open(here, "a") as file:
                file.write(text)
        elif kind == "mkdir":
            os.makedirs(here)
        elif kind == "remove":
            shutil.rmtree(here) if os.path.isdir(here) and not os.path.islink(here) else os.unlink(here)
        elif kind == "replace":
            shutil.rmtree(here)
            os.mkdir(here)
            open(os.path.join(here, "new"), "w").close()
        elif kind == "move":
            if os.path.lexists(there) or there.startswith(here + "/"):
                return
            if os.path.islink(here) or not os.path.isdir(here):
                os.rename(here, there)
            else:  # overlay does not rename directories of layers, and programs do this instead
                shutil.copytree(here, there, symlinks=True)
                shutil.rmtree(here)
        elif kind == "link":
            os.link(here, there, follow_symlinks=False)
        elif kind == "symlink":
            os.symlink(text, here)
        elif kind == "mode":
            os.chmod(here, int(text[:3], 8) | 0o700, follow_symlinks=True) if not os.path.islink(here) else None
        elif kind == "holes":
            with open(here, "ab") as file:
                file.truncate(file.tell() + 1000000)
        elif kind == "note":
            os.setxattr(here, "user.note", text.encode(), follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO, errno.EROFS):
            raise

def describe(root):
    rows = []
    for folder, names, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in names + files):
            state = os.lstat(path)
            kind = stat.S_IFMT(state.st_mode)
            text = os.readlink(path) if kind == stat.S_IFLNK else ""
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    text = file.read().hex() if state.st_size < 100000 else str(state.st_size)
            named = [] if kind == stat.S_IFLNK else os.listxattr(path)
            notes = [os.getxattr(path, name).decode() for name in named if name == "user.note"]
            rows.append((path[len(root):], kind, state.st_mode if kind != stat.S_IFLNK else 0, text, notes))
    return repr(sorted(rows))
'''
"""The code of both sides."""

KINDS = ("write", "write", "write", "mkdir", "remove", "replace", "move", "link", "symlink", "mode", "holes", "note")


def some_change(chance: random.Random) -> tuple[str, str, str, str]:
    """The arguments of ``change`` after the root."""

    def path() -> str:
        return "/".join(chance.choice(NAMES) for _ in range(chance.randint(1, 3)))

    return chance.choice(KINDS), path(), path(), f"{chance.randrange(0o1000):03o} text {chance.random()}"
