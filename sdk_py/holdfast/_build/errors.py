"""Errors of a Dockerfile, with the line where it is wrong."""

from __future__ import annotations

from holdfast._errors import DockerfileError


def wrong(line: int, message: str, hint: str = "") -> DockerfileError:
    """The error of the instruction that begins in ``line``; the reader of the file adds the file's name."""
    return DockerfileError(message, line=line, hint=hint)
