"""``POST /upload``: a file, or with ``unzip`` a folder in a zip archive, whose form names the target after the content.

Owns the bounded copy of the content that is needed for that, and the translation of the archive: the sandbox's agent unpacks it under its
own rules for paths, as every archive that comes from outside.
"""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
import zipfile
from collections.abc import AsyncIterator
from typing import IO, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DATA_BYTES
from starlette.requests import Request
from starlette.responses import Response

from gateway.audit.lines import masked_path
from gateway.faces.table import note, parts
from gateway.http.multipart import FormPart, form_parts
from gateway.http.request_fields import body_chunk
from gateway.http.responses import json_response
from gateway.use_cases import describe, streams

_SPOOLED_BYTES: Final = 1024 * 1024
"""Larger content is in a temporary file."""
_FIELD_BYTES: Final = 8192
_MEMBERS: Final = 200_000
_ENTRY: Final = b"PK\x01\x02"
"""With what the description of a member begins."""
_PIECE_BYTES: Final = 1024 * 1024
_BLOCK: Final = 512


async def upload(request: Request) -> Response:
    """The handler."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    fields: dict[str, str] = {}
    with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES) as content:
        found = False
        async for part in form_parts(request.headers.get("content-type", ""), _body(request)):
            if part.field == "file":
                found = True
                await _receive(part, content, gateway.settings.rest.file_bytes)
            else:
                fields[part.field] = await _text(part)
        target = fields.get("target_path", "")
        if not found or not target:
            raise HoldfastError("invalid_argument", "the form needs the parts file and target_path", hint="")
        note(request, path=masked_path(target))
        content.seek(0)
        if fields.get("unzip", "false").lower() in ("true", "1", "yes", "on"):
            await streams.write(gateway, record, {"path": target}, _archive(content), kind="upload")
        else:
            await streams.write(gateway, record, {"path": target}, _pieces(content))
    return json_response({})


async def _body(request: Request) -> AsyncIterator[bytes]:
    more = True
    while more:
        chunk, more = await body_chunk(request)
        yield chunk


async def _receive(part: FormPart, content: IO[bytes], most_bytes: int) -> None:
    size = 0
    async for piece in part.pieces():
        size += len(piece)
        if size > most_bytes:
            raise HoldfastError("request_too_large", f"an upload has at most {most_bytes} bytes", hint="use Holdfast's SDK for larger ones")
        content.write(piece)


async def _text(part: FormPart) -> str:
    value = b""
    async for piece in part.pieces():
        value += piece
        if len(value) > _FIELD_BYTES:
            raise HoldfastError("request_too_large", f"the part {part.field[:60]!r} has more than {_FIELD_BYTES} bytes")
    return value.decode("utf-8", "surrogateescape")


async def _pieces(content: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(content.read, DATA_BYTES):
        yield piece


async def _archive(content: IO[bytes]) -> AsyncIterator[bytes]:
    """The zip archive as a tar stream, one piece of one member at a time."""
    try:
        with await asyncio.to_thread(_opened, content) as archive:
            for member in archive.infolist():
                yield _header(member)
                if member.is_dir():
                    continue
                left = member.file_size
                with archive.open(member) as file:
                    while piece := await asyncio.to_thread(file.read, min(DATA_BYTES, left + 1)):
                        left -= len(piece)
                        if left < 0:
                            raise zipfile.BadZipFile(f"{member.filename[:200]!r} is longer than the archive says")
                        yield piece
                if left:
                    raise zipfile.BadZipFile(f"{member.filename[:200]!r} is shorter than the archive says")
                yield b"\0" * (-member.file_size % _BLOCK)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise HoldfastError("archive_invalid", f"the zip archive cannot be read: {error}"[:300], hint="") from None
    yield b"\0" * (2 * _BLOCK)


def _opened(content: IO[bytes]) -> zipfile.ZipFile:
    """The archive. Its members are counted before its list of them is read, which takes memory and time for each. Blocks."""
    found, end = 0, b""
    while piece := content.read(_PIECE_BYTES):
        found += (end + piece).count(_ENTRY)
        end = piece[1 - len(_ENTRY) :]
        if found > _MEMBERS:
            raise HoldfastError("request_too_large", f"an archive has at most {_MEMBERS} members")
    return zipfile.ZipFile(content)


def _header(member: zipfile.ZipInfo) -> bytes:
    info = tarfile.TarInfo(member.filename.rstrip("/") or ".")
    mode = member.external_attr >> 16 & 0o777
    if member.is_dir():
        info.type, info.mode = tarfile.DIRTYPE, mode or 0o755
    else:
        info.size, info.mode = member.file_size, mode or 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
