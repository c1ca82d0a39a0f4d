"""The repository's own checks can fail: each gets an input that it must refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.scripts import import_rules, tracked_files


def test_wire_and_agent_may_import_only_what_is_allowed(tmp_path: Path) -> None:
    wire = tmp_path / "schemas" / "holdfast_wire"
    agent = tmp_path / "session_agent" / "node"
    for folder in (wire, agent):
        folder.mkdir(parents=True)
    (wire / "frames.py").write_text("import msgpack, struct\nfrom . import codec\nimport holdfast_wire.errors\n")
    (wire / "session.py").write_text("def late():\n    import websockets\n")
    (agent / "zygote.py").write_text("import os, msgpack\nfrom holdfast_wire import frames\nfrom redis import Redis\n")
    assert import_rules.allow_list_breaches(tmp_path) == [
        "schemas/holdfast_wire/session.py:2: schemas/holdfast_wire may not import websockets",
        "session_agent/node/zygote.py:3: session_agent may not import redis",
    ]


def test_a_contract_about_a_missing_module_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contract = "[importlinter:contract:a]\nname = a\ntype = forbidden\nsource_modules =\n    loadtest\nforbidden_modules =\n    "
    for forbidden, status in (("loadtest.nowhere", 1), ("gateway", 0)):
        text = f"[importlinter]\nroot_packages =\n    loadtest\n    gateway\n{contract}{forbidden}\n"
        (tmp_path / ".importlinter").write_text(text)
        monkeypatch.setattr(import_rules, "_TOP", tmp_path)
        assert import_rules.main() == status
        assert ("'loadtest.nowhere' does not exist" in capsys.readouterr().out) == bool(status)


def test_index_settings_machine_paths_and_endless_modules_are_found(tmp_path: Path) -> None:
    top = tmp_path / "clone"
    top.mkdir()
    bad = {
        "pip.conf": f"[global]\n{'index' + '-url'} = somewhere\n",
        "notes.md": f"see {top.parent}/elsewhere\n",
        "long.py": "x = 1\n" * 601,
    }
    for name, text in {**bad, "fine.py": "x = 1\n" * 600}.items():
        (top / name).write_text(text)
    found = tracked_files.problems(top, sorted(top.iterdir()))
    assert found == [
        "long.py: 601 lines; split it before 600",
        "notes.md:1: a path of this machine",
        "pip.conf:2: a package-index setting or address",
    ]
    assert len(tracked_files.long_modules(top, sorted(top.iterdir()))) == 2
