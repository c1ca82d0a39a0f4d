"""``make release``: what it changes, what it refuses, and that it builds the same archives twice."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from infra.scripts.release import VERSION, ReleaseError, next_version, released, with_version

ROOT = Path(__file__).resolve().parents[2]
LOG = "# Changelog\n\n## Unreleased\n\n### Added\n- a\n\n## 0.1.0 - 2026-01-01\n\n- first\n"


def test_the_unreleased_part_becomes_the_version() -> None:
    changed, notes = released(LOG, "0.2.0", "2026-02-01")
    assert notes == "### Added\n- a\n"
    assert changed == LOG.replace("## Unreleased\n", "## Unreleased\n\n## 0.2.0 - 2026-02-01\n")
    with pytest.raises(ReleaseError, match="already"):
        released(LOG, "0.1.0", "2026-02-01")
    with pytest.raises(ReleaseError, match="nothing in it"):
        released(changed, "0.3.0", "2026-02-01")


def test_versions() -> None:
    text = (ROOT / "sdk_py/holdfast/__init__.py").read_text()
    assert VERSION.fullmatch(next_version(text))
    assert '__version__ = "9.8.7rc1"\n' in with_version(text, "9.8.7rc1")
    assert not any(VERSION.fullmatch(one) for one in ("1", "1.0", "01.0.0", "1.0.0.dev0", "v1.0.0", "1.0.0\n"))


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=170, check=False)


def test_a_release_is_built_from_a_commit_and_the_same_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    assert run("git", "clone", "--quiet", ROOT, source, cwd=tmp_path).returncode == 0
    vendor = source / "gateway/faces/page/static/vendor"
    vendor.mkdir()
    (vendor / "modules.json").write_text("{}")
    (source / "README.md").write_text("changed")
    script = [sys.executable, "infra/scripts/release.py", "--version", "9.8.7", "--output"]
    assert "not committed" in run(*script, tmp_path, cwd=source).stderr
    run("git", "checkout", "README.md", cwd=source)
    for name in ("first", "second"):
        built = run(*script, tmp_path / name, cwd=source)
        assert built.returncode == 0, built
    assert run("git", "status", "--porcelain", cwd=source).stdout == "", "the working tree is as it was"
    sums = [(tmp_path / name / "9.8.7" / "SHA256SUMS").read_text() for name in ("first", "second")]
    assert sums[0] == sums[1]
    made = tmp_path / "first" / "9.8.7"
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=made).returncode == 0
    assert "exists" in run(*script, tmp_path / "first", cwd=source).stderr
    with zipfile.ZipFile(made / "holdfast-9.8.7-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        assert {"holdfast/_changes.py", "holdfast_server/services/gateway/app.py", "holdfast_server/services/schemas/openapi.yaml"} <= names
        assert "Version: 9.8.7\n" in wheel.read("holdfast-9.8.7.dist-info/METADATA").decode()
    with tarfile.open(made / "holdfast-9.8.7.tar.gz") as archive:
        assert "holdfast-9.8.7/gateway/placement/scripts/update.lua" in archive.getnames()
    assert "### " in (made / "NOTES.md").read_text()
