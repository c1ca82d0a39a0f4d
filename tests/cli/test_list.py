"""``holdfast list``: the filters, and what they select."""

from __future__ import annotations

import json

import pytest
from holdfast.cli.app import run

from tests.sdk.rest.test_rest import Service

RECORD = {"namespace": "", "block_network": True, "cpu": "1", "memory": "1Gi", "timeout": 60}


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [
        ("status=bogus", "the filter status must be one of pending, ready, failed, running, not 'bogus'"),
        ("status=", "the filter status must be one of pending, ready, failed, running, not ''"),
        ("status", "the filter status must be one of"),
        ("id", "the filter id needs a value: id=VALUE"),
        ("name=", "the filter name needs a value: name=VALUE"),
        ("ancestor=", "the filter ancestor needs a value: ancestor=VALUE"),
        ("label", "the filter label needs a value: label=NAME=VALUE"),
        ("colour=red", "there is no filter 'colour'"),
    ],
)
def test_a_filter_that_can_never_match_is_refused(filter_: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "-f", filter_]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("filters", "selected"),
    [
        ("status=ready", "one two"),
        ("status=running", "one two"),
        ("status=failed status=pending", "three"),
        ("status=ready status=failed", "one two three"),
        ("status=ready id=two id=three", "two"),
        ("ancestor=python name=o", "two"),
        ("ancestor=ruby", ""),
    ],
)
def test_one_value_of_each_filter_has_to_match(
    filters: str, selected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("one", "host", "ready"), ("two", "python:3.12", "ready"), ("three", "python:3.12", "failed")]
    records = [RECORD | {"sandbox_id": name, "image": image, "status": status, "ready": True} for name, image, status in rows]
    with Service() as service:
        service.answers = [(200, {"sandboxes": records})]
        monkeypatch.setenv("HOLDFAST_URL", service.url)
        monkeypatch.setenv("HOLDFAST_API_KEY", "key")
        assert run(["ps", "-q", *(word for filter_ in filters.split() for word in ("-f", filter_))]) == 0
    assert capsys.readouterr().out.split() == selected.split()


def problem(code: str, detail: str) -> dict[str, object]:
    return {"type": "", "title": "", "status": 404, "detail": detail, "code": code, "hint": "", "retryable": False, "fault": "caller"}


def test_inspect_shows_all_that_there_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    there = [(200, RECORD | {"sandbox_id": name, "image": "host", "status": "ready", "ready": True}) for name in ("one", "three")]
    with Service() as service:
        service.answers = [there[0], (404, problem("sandbox_not_found", "there is no sandbox 'two'")), there[1]]
        monkeypatch.setenv("HOLDFAST_URL", service.url)
        monkeypatch.setenv("HOLDFAST_API_KEY", "key")
        assert run(["inspect", "one", "two", "three"]) == 125
    shown = capsys.readouterr()
    assert [record["sandbox_id"] for record in json.loads(shown.out)] == ["one", "three"]
    assert "there is no sandbox 'two'" in shown.err


def test_image_rm_removes_all_that_there_are(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Service() as service:
        service.answers = [(404, problem("image_not_found", "there is no image two")), (200, {"status": "deleted"})]
        monkeypatch.setenv("HOLDFAST_URL", service.url)
        monkeypatch.setenv("HOLDFAST_API_KEY", "key")
        assert run(["rmi", "--json", "two", "three"]) == 125
        assert [line for line, _ in service.requests] == ["DELETE /images/two", "DELETE /images/three"]
        shown = capsys.readouterr()
        service.answers = [(200, {"status": "deleted"}), (401, problem("key_invalid", "the API key is not known"))]
        assert run(["rmi", "--json", "four", "five", "six"]) != 0
        assert [line for line, _ in service.requests][2:] == ["DELETE /images/four", "DELETE /images/five"]
        assert json.loads(capsys.readouterr().out) == {"removed": ["four"]}, "what was removed is reported"
    assert json.loads(shown.out) == {"removed": ["three"]}
    assert "there is no image two" in json.loads(shown.err)["error"]["message"]
