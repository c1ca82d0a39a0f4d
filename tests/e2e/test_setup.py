"""`make setup` on machines that lack a requirement: it names the requirement and how to install it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from holdfast_server.layout import TOP

_STUBS = {
    "old-python": '#!/bin/sh\ncase "$*" in *version_info*) exit 1;; esac\nexit 1\n',
    "python-without-venv": '#!/bin/sh\ncase "$*" in *"-m venv"*) exit 1;; *"%d.%d"*) echo 3.11;; esac\nexit 0\n',
}


def setup_with(tmp_path: Path, python: str) -> str:
    """The error output of the setup script where `python3` is the stub and apt-get installs nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "sh", "dirname", "id", "rm", "mkdir", "touch", "uname", "env"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    for name, text in (("python3", _STUBS[python]), ("apt-get", "#!/bin/sh\nexit 100\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    clone = tmp_path / "clone" / "infra" / "scripts"
    clone.mkdir(parents=True)
    shutil.copy(TOP / "infra/scripts/setup", clone)
    # The script falls back to /usr/bin/python3; this copy looks elsewhere, as on a machine without that file.
    (clone / "pythons").write_text((TOP / "infra/scripts/pythons").read_text().replace("/usr/bin/python3", "/nowhere/python3"))
    (clone / "pythons").chmod(0o755)
    result = subprocess.run(
        ["bash", clone / "setup"],
        env={"PATH": os.fspath(programs), "HOME": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 1
    return result.stderr


def test_no_python_new_enough(tmp_path: Path) -> None:
    output = setup_with(tmp_path, "old-python")
    assert "no Python 3.11 or newer was found" in output
    assert "apt-get install python3" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user the same message is printed without apt-get")
def test_python_without_venv_names_its_package_after_trying_to_install_it(tmp_path: Path) -> None:
    output = setup_with(tmp_path, "python-without-venv")
    assert "installing python3.11-venv with apt-get" in output
    assert "Install the package python3.11-venv" in output
