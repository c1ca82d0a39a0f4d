"""The codes of the errors that ``holdfast up --json`` reports: each is in the error table and names the cause of the failed start."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_server import datadir
from holdfast_server.embed import free_port
from holdfast_server.errors import UpError
from holdfast_server.layout import TOP
from holdfast_wire.errors import TABLE

from tests.e2e.runner import up

_DEADLINE_S = 60.0


def refused_code(tmp_path: Path, *, code: str | None = None, **environment: str) -> str:
    """The code of the error that ``--json`` reports; ``code`` runs instead of the module."""
    settings = {"HOLDFAST_DATA": str(tmp_path / "data"), "PORT": str(free_port()), **environment}
    program = ["-m", "holdfast_server"] if code is None else ["-c", code]
    result = subprocess.run(
        [sys.executable, *program, "--json"], cwd=TOP, env={**os.environ, **settings}, capture_output=True, text=True, timeout=_DEADLINE_S
    )
    assert result.returncode == 2, result.stdout + result.stderr
    error = json.loads(result.stderr)["error"]
    assert error["hint"]
    assert error["code"] in TABLE
    return str(error["code"])


def test_codes_name_the_cause_of_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    without = "import sys; from holdfast_server import __main__ as m; m.{} = lambda: {}; sys.exit(m.main())"
    assert refused_code(tmp_path, PORT="eighty") == "invalid_argument"
    assert refused_code(tmp_path, HOLDFAST_REDIS_URL="nonsense") == "invalid_argument"
    assert refused_code(tmp_path, HOLDFAST_DATA="/proc/holdfast") == "file_not_found"
    assert refused_code(tmp_path, HOLDFAST_DATA=str(tmp_path / "file" / "data")) == "not_a_directory"
    assert refused_code(tmp_path, HOLDFAST_DATA=str(tmp_path / "full")) == "directory_not_empty"
    assert refused_code(tmp_path, HOLDFAST_DATA=str(tmp_path / ("d" * 120)), XDG_RUNTIME_DIR=str(tmp_path / "gone")) == "file_not_found"
    assert refused_code(tmp_path, code=without.format("find_redis_server", None)) == "unsupported"
    assert refused_code(tmp_path, code=without.format("missing_packages", ["redis"])) == "unsupported"
    with socket.create_server(("127.0.0.1", 0)) as holder:
        assert refused_code(tmp_path, PORT=str(holder.getsockname()[1])) == "in_use"
    with up(tmp_path, "a: sh -c 'echo up; exec sleep 600'\n") as run:
        run.wait_text("a | up")
        assert refused_code(tmp_path) == "in_use"


@pytest.mark.parametrize(("number", "code"), [(errno.EACCES, "permission_denied"), (errno.ENOSPC, "no_space"), (errno.EIO, "io_error")])
def test_errors_of_the_data_folder_have_the_code_of_their_errno(tmp_path: Path, number: int, code: str) -> None:
    with pytest.raises(UpError) as refused, datadir.writing(datadir.DataDir(tmp_path)):
        raise OSError(number, os.strerror(number))
    assert refused.value.code == code
