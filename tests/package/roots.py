"""Root file systems like those of images: made from this machine's programs, or from packages of an older release if they are available.

Owns what each root holds. Only `old_release` downloads, through apt's own client; tests of a root that cannot be made are skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from session_agent.bundle.libraries import MissingLibraryError, loader, needed
from tests.support.mirror import mirror
from tests.support.requires import static_busybox

PROGRAMS = (
    "bash", "sh", "ls", "cat", "echo", "true", "false", "sleep", "seq", "head", "tail", "tr", "sort", "setsid", "stty", "mkdir",
    "rmdir", "rm", "env", "id", "pwd", "printf", "grep", "sed", "readlink", "touch", "date", "wc", "kill", "yes", "stat", "test", "cut",
    "uname",
)  # fmt: skip
OLD_PACKAGES = (
    "bash", "coreutils", "dash", "grep", "sed", "util-linux", "libc6", "libtinfo6", "libacl1", "libattr1", "libgmp10", "libpcre3",
    "libpcre2-8-0", "libselinux1", "libcrypt1", "libgcc-s1", "gcc-10-base",
)  # fmt: skip


def bare_busybox(root: Path) -> Path:
    """One static program, and nothing else: no links, no /tmp, no /etc."""
    _put(Path(static_busybox() or "missing"), root / "bin/busybox")
    return root


def busybox(root: Path) -> Path:
    """As the usual small image: one static program under all its names."""
    bare_busybox(root)
    names = subprocess.run([root / "bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        link = root / "bin" / name
        if not link.exists():
            link.symlink_to("busybox")
    _accounts(root)
    return root


def debian(root: Path) -> Path:
    """This machine's own shells and tools with the libraries they need."""
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None, name
        program = Path(found).resolve()
        _put(program, root / "bin" / name)
        _add_libraries(program, root)
    (root / "usr").mkdir(exist_ok=True)
    (root / "usr/bin").symlink_to("../bin")
    _accounts(root)
    return root


def no_shell(root: Path) -> Path:
    """A static program that is not a shell."""
    source = root / "tool.c"
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\nextern char **environ;\n"
        "int main(int argc, char **argv) { for (int i = 1; i < argc; i++) puts(argv[i]);"
        " if (argc == 1) for (char **e = environ; *e; e++) puts(*e); return argc == 2 ? 7 : 0; }\n"
    )
    compiler = shutil.which("musl-gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to make an image without a shell")
    (root / "bin").mkdir()
    subprocess.run([compiler, "-static", "-o", str(root / "bin/tool"), str(source)], check=True)
    source.unlink()
    return root


def musl(root: Path) -> Path:
    """A busybox, and a program that is linked to musl, with musl as the image's only libc."""
    compiler = shutil.which("musl-gcc")
    loaders = sorted(Path("/lib").glob("ld-musl-*.so.1"))
    if compiler is None or not loaders:
        pytest.skip("needs musl: apt-get install musl-tools")
    busybox(root)
    source = root / "tool.c"
    source.write_text("#include <stdio.h>\n#include <pwd.h>\nint main(void) { return puts(getpwuid(0)->pw_name) < 0; }\n")
    subprocess.run([compiler, "-o", str(root / "bin/tool"), str(source)], check=True)
    _put(loaders[0], root / loaders[0].relative_to("/"))
    return root


def broken_libc(root: Path) -> Path:
    """Shells that cannot start, because the image's libc is damaged; a static program can."""
    debian(root)
    for libc in root.rglob("libc.so.6"):
        libc.write_bytes(b"\x7fELF damaged")
    _put(Path(static_busybox() or "missing"), root / "bin/busybox")
    return root


def old_release(root: Path, cache: Path, release: str = "bullseye") -> Path:
    """Bash and coreutils of an older Debian release on its own, older glibc."""
    cache.mkdir(parents=True, exist_ok=True)
    sources = cache / "sources.list"
    sources.write_text(f"deb {mirror()} {release} main\n")
    for name in ("lists/partial", "archives/partial"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={cache}/lists",
        "Dir::State::Status=/dev/null",
    ]
    options += [
        f"Dir::Cache={cache}",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
        "Acquire::Retries=1",
        "Acquire::http::Timeout=10",
    ]
    apt = ["apt-get", "-qq", *(f"-o{option}" for option in options)]
    try:
        if not any(cache.glob("libc6_*.deb")):
            subprocess.run([*apt, "update"], check=True, capture_output=True, timeout=60)
            subprocess.run([*apt, "download", *OLD_PACKAGES], check=True, capture_output=True, timeout=60, cwd=cache)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"packages of Debian {release} are not available here: {error}")
    for package in sorted(cache.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    (root / "bin/sh").unlink(missing_ok=True)
    (root / "bin/sh").symlink_to("dash")
    _accounts(root)
    return root


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


def _add_libraries(program: Path, root: Path) -> None:
    glibc = loader()
    assert glibc is not None
    try:
        libraries = needed(program, glibc)
    except MissingLibraryError:
        return  # a script
    for name, file in libraries.items():
        _put(file, root / Path(name if name.startswith("/") else file).relative_to("/"))


def _accounts(root: Path, folders: Iterable[str] = ("etc", "tmp", "root", "var/tmp", "usr")) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
