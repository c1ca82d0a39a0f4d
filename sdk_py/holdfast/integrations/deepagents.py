"""A sandbox as the backend of deepagents (extra ``deepagents``): ``create_deep_agent(backend=HoldfastBackend(sandbox))``.

Owns the translation of results and errors. deepagents' own base class makes its tools for files from ``execute`` and the two transfers. The
caller owns the sandbox, and deletes it.
"""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileOperationError, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from holdfast import (
    InvalidPathError,
    RemoteFileError,
    RemoteFileNotFoundError,
    RemoteIsADirectoryError,
    RemoteNotADirectoryError,
    RemotePermissionError,
    Sandbox,
)

TIMEOUT_S = 30 * 60
"""How long a command may run that sets no time."""
OUTPUT_BYTES = 1024 * 1024
_ERRORS: tuple[tuple[type[Exception], FileOperationError], ...] = (
    (RemoteFileNotFoundError, "file_not_found"),
    (RemotePermissionError, "permission_denied"),
    (RemoteIsADirectoryError, "is_directory"),
    (RemoteNotADirectoryError, "invalid_path"),
    (InvalidPathError, "invalid_path"),
)


class HoldfastBackend(BaseSandbox):
    """One sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self.sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command line. The output has both streams in the order of writing, the beginning and the end of a long one."""
        result = self.sandbox.exec(command, timeout=timeout or TIMEOUT_S, stderr="stdout", max_output_bytes=OUTPUT_BYTES, keep="both")
        output = result.output
        if result.timed_out:
            output += f"\n[timed out after {timeout or TIMEOUT_S} s: the command and all its processes were killed]"
        return ExecuteResponse(output=output, exit_code=result.exit_code, truncated=result.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; each has a result of its own."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def _write(self, path: str, content: bytes) -> FileOperationError | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self.sandbox.files.write(path, content)
        except (RemoteFileError, InvalidPathError) as error:
            return _error_of(error)
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; each has a result of its own."""
        return [self._read(path) for path in paths]

    def _read(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, content=None, error="invalid_path")
        try:
            entry = self.sandbox.files.stat(path)
            if not entry.is_dir and not entry.mode & 0o444:
                return FileDownloadResponse(path=path, content=None, error="permission_denied")
            return FileDownloadResponse(path=path, content=self.sandbox.files.read(path), error=None)
        except (RemoteFileError, InvalidPathError) as error:
            return FileDownloadResponse(path=path, content=None, error=_error_of(error))


def _error_of(error: Exception) -> FileOperationError:
    """deepagents' word for an error. Raises an error that it has none for."""
    for kind, word in _ERRORS:
        if isinstance(error, kind):
            return word
    raise error
