"""The parts of a multipart form, one after another as they arrive.

Owns which parts are files (those named ``file``), how many there may be, and that nothing of them is collected in memory. The format is
parsed by python-multipart. Called by faces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from holdfast_wire.errors import HoldfastError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

_MOST_FILES: Final = 1000
_HEAD_BYTES: Final = 16 * 1024
"""Most bytes of the header fields of a part."""


class FormPart:
    """A part of the form: the name of its field, and of a file its whole name. Its pieces must be read before the next part."""

    def __init__(self, field: str, name: str, form: _Form) -> None:
        self.field = field
        self.name = name
        self._form = form

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._form.piece()) is not None:
            yield piece


async def form_parts(content_type: str, body: AsyncIterator[bytes]) -> AsyncIterator[FormPart]:
    """The parts of the form. Raises ``invalid_argument`` for what is no form, and what ``body`` raises."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise HoldfastError("invalid_argument", "the form names no boundary", hint="")
    form = _Form(boundary, body)
    while (fields := await form.next_part()) is not None:
        options = parse_options_header(fields.get(b"content-disposition", b""))[1]
        name, file = (options.get(one, b"").decode("utf-8", "replace") for one in (b"name", b"filename"))
        yield FormPart(name, file, form)


async def file_parts(content_type: str, body: AsyncIterator[bytes]) -> AsyncIterator[FormPart]:
    """The parts that are files: those named ``file``. Raises as ``form_parts``."""
    count = 0
    async for part in form_parts(content_type, body):
        if part.field != "file":
            continue
        count += 1
        if count > _MOST_FILES:
            raise HoldfastError("invalid_argument", f"a form has at most {_MOST_FILES} files", hint="send several forms")
        yield part


class _Form:
    """The parts of a form that is being received."""

    def __init__(self, boundary: bytes, body: AsyncIterator[bytes]) -> None:
        self._body = body
        self._found: deque[dict[bytes, bytes] | bytes | None] = deque()
        """The header fields of a part, pieces of its content, and None after it."""
        self._field, self._value = bytearray(), bytearray()
        self._fields: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._complete = False
        self._inside = False
        """Whether the next piece or end belongs to a part whose header fields were taken."""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._head(self._field, data[start:end]),
                "on_header_value": lambda data, start, end: self._head(self._value, data[start:end]),
                "on_header_end": self._header,
                "on_headers_finished": lambda: self._found.append(dict(self._fields)),
                "on_part_data": lambda data, start, end: self._found.append(bytes(data[start:end])),
                "on_part_end": lambda: self._found.append(None),
                "on_end": self._end,
            },
        )

    async def next_part(self) -> dict[bytes, bytes] | None:
        """The header fields of the next part, None after the last one. What is left of the part before is skipped."""
        while self._inside:
            await self.piece()
        found = await self._next()
        if found is None:
            return None
        assert isinstance(found, dict)
        self._inside = True
        return found

    async def piece(self) -> bytes | None:
        """The next piece of the part's content, None at its end."""
        found = await self._next() if self._inside else None
        if found is None:
            self._inside = False
        assert not isinstance(found, dict)
        return found

    async def _next(self) -> dict[bytes, bytes] | bytes | None:
        while not self._found:
            if self._complete:
                return None
            chunk = await anext(self._body, None)
            try:
                if chunk is None:
                    raise FormParserError("it ends too early")
                self._parser.write(chunk)
            except FormParserError as error:
                raise HoldfastError("invalid_argument", f"error reading form: {error}"[:300], hint="") from None
        return self._found.popleft()

    def _begin(self) -> None:
        self._fields.clear()
        self._head_bytes = 0

    def _head(self, target: bytearray, data: bytes) -> None:
        self._head_bytes += len(data)
        if self._head_bytes > _HEAD_BYTES:
            raise FormParserError("the header fields of a part are too long")
        target += data

    def _header(self) -> None:
        self._fields[bytes(self._field).lower()] = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _end(self) -> None:
        self._complete = True
