"""``image list``, ``inspect``, ``import``, ``pull``, ``tag``, ``save`` and ``rm``, and ``--pull`` of ``run`` and ``create``."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

from holdfast import ConflictError, HoldfastError, ImageInfo, ImageNotFoundError, NotFoundError, SandboxClient
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.docker_records import image_record, image_row
from holdfast.cli.output import print_json, print_line, print_rows, report, table
from holdfast.cli.templates import template

HOST = "host"


def list_(arguments: Arguments) -> None:
    rows = None if arguments.format is None else print_rows(arguments.format)
    with SandboxClient() as client:
        images = client.images.list()
    if rows is not None:
        rows([image_row(image) for image in images])
    elif arguments.json:
        print_json([dataclasses.asdict(image) for image in images])
    elif arguments.quiet:
        for image in images:
            print_line(image.name)
    elif any(image.nodes_wanted is not None for image in images):
        table(("IMAGE", "NODES"), ((i.name, f"{i.nodes_ready or 0}/{i.nodes_wanted or 0}") for i in images))
    else:
        table(("IMAGE", "DIGEST", "SIZE"), ((i.name, i.digest[:19], _size(i.size_bytes)) for i in images))


def inspect(arguments: Arguments) -> int:
    """``image inspect``: docker's form; images that are not there are reported at the end."""
    shown = None if arguments.format is None else template(arguments.format)
    with SandboxClient() as client:
        images = client.images.list()
    found = [image_record(image) for name in arguments.name if (image := _of(images, name)) is not None]
    if shown is None:
        print_json(found)
    else:
        for record in found:
            print_line(shown(record))
    missing = [name for name in arguments.name if _of(images, name) is None]
    for name in missing:
        report(_missing(name).to_map(), as_json=arguments.json)
    return 125 if missing else 0


def prepare_image(client: SandboxClient, name: str, when: str) -> None:
    """Do what ``--pull`` asks for before a sandbox is created. Raises ``ImageNotFoundError`` for ``never``."""
    if when == "always" or (when == "never" and _of(client.images.list(), name) is None and name != HOST):
        if when == "never":
            raise _missing(name)
        client.images.pull(name)


def _of(images: list[ImageInfo], name: str) -> ImageInfo | None:
    """The image of this name, digest or beginning of a digest."""
    names = {name, f"{name}:latest"}
    by_digest = [image for image in images if name.startswith("sha256:") and image.digest.startswith(name)]
    return next((image for image in images if image.name in names), None) or next(iter(by_digest), None)


def _missing(name: str) -> ImageNotFoundError:
    return ImageNotFoundError("image_not_found", f"there is no image {name}", hint=f"holdfast pull {name}, or holdfast image list")


def import_(arguments: Arguments) -> None:
    with SandboxClient() as client:
        path = "/dev/stdin" if arguments.path == "-" else arguments.path
        _show(client.images.import_(path, arguments.name, shared=arguments.shared), arguments.json)


def pull(arguments: Arguments) -> None:
    with SandboxClient() as client:
        _show(client.images.pull(arguments.name, shared=arguments.shared), arguments.json)


def tag(arguments: Arguments) -> None:
    with SandboxClient() as client:
        image = client.images.tag(arguments.name, arguments.tag, shared=arguments.shared)
    if not arguments.docker or arguments.json:
        _show(image, arguments.json)


def save(arguments: Arguments) -> None:
    if arguments.output is None and sys.stdout.isatty():
        raise UsageError(
            "an archive is not written to a terminal", hint="write -o FILE, or send it on: holdfast image save NAME | docker load"
        )
    import tempfile  # takes longer than the rest of a short command

    target = None if arguments.output is None else Path(arguments.output)
    with tempfile.TemporaryDirectory(prefix=".holdfast-", dir=target.parent if target else None) as folder, SandboxClient() as client:
        archive = Path(folder) / "image.tar"
        client.images.save(arguments.name, archive)
        if target is not None:
            archive.replace(target)
            return
        with archive.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)


def remove(arguments: Arguments) -> int:
    removed: list[str] = []
    failed: list[HoldfastError] = []
    try:
        with SandboxClient() as client:
            for name in arguments.name:
                try:
                    client.images.remove(name, shared=arguments.shared)
                except (ConflictError, NotFoundError) as why:  # the images after it are removed nevertheless, as in docker
                    if len(arguments.name) == 1:
                        raise
                    failed.append(why)
                else:
                    removed.append(name)
    finally:
        if arguments.json and (removed or failed):
            print_json({"removed": removed})
        for one in failed:
            report(one.to_map(), as_json=arguments.json)
    return 125 if failed else 0


def _show(image: ImageInfo, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(image))
    else:
        print_line(image.name)


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
