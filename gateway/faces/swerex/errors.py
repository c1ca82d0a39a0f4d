"""Errors in the form in which SWE-ReX's server transfers exceptions: status 511 with the class that its client raises again.

Owns which errors are the workload's own and transferred; all others (keys, limits, sandboxes that ended) are refusals as in REST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[Request], Awaitable[Response]]
_STATUS: Final = 511
_BUILTINS: Final = {
    "file_not_found": "FileNotFoundError",
    "permission_denied": "PermissionError",
    "file_exists": "FileExistsError",
    "is_a_directory": "IsADirectoryError",
    "not_a_directory": "NotADirectoryError",
    "no_space": "OSError",
    "cwd_not_found": "FileNotFoundError",
}
"""Python's exception for each code that a file or command of the sandbox is answered with."""


class TransferredError(HoldfastError):
    """An exception of SWE-ReX, by the name of its class."""

    def __init__(self, name: str, message: str, **extra: Any) -> None:
        super().__init__("invalid_argument", message, hint="")
        self.path = name if "." in name else f"swerex.exceptions.{name}"
        self.extra = extra


def transferring(handler: Handler) -> Handler:
    """The handler with the workload's own errors as answers."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except TransferredError as error:
            return _transferred(error.path, error.message, error.extra)
        except HoldfastError as error:
            if error.code not in _BUILTINS:
                raise
            return _transferred(f"builtins.{_BUILTINS[error.code]}", error.message, {})

    return handle


def _transferred(path: str, message: str, extra: dict[str, Any]) -> Response:
    body = {"swerexception": {"message": message, "class_path": path, "traceback": "", "extra_info": extra}}
    return Response(orjson.dumps(body), _STATUS, media_type="application/json")
