"""Unit tests of small parts: keys, log lines, metrics, retry detection, settings."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.logs import LineFormatter

from gateway.faces.orchard.retry_detection import PostedExec, RetryDetection
from gateway.identity.keys import Keys, key_of
from gateway.identity.secrets import read_secrets
from gateway.metrics import Metrics
from gateway.settings import PlacementSettings, from_environment


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def test_a_changed_keys_file_is_read_again_and_a_missing_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# people\nada {digest('a')}\n\nnonsense\nbob short\neve {digest('e')}\n")
    keys = Keys(path)
    assert ((await keys.principal_of("a")).owner, (await keys.principal_of("e")).owner) == ("ada", "eve")
    for key, code in ((None, "key_missing"), ("", "key_missing"), ("b", "key_invalid"), (digest("a"), "key_invalid")):
        with pytest.raises(HoldfastError) as caught:
            await keys.principal_of(key)
        assert caught.value.code == code
    path.unlink()
    assert (await keys.principal_of("a")).owner == "ada"
    path.write_text(f"ada {digest('new')}\n")
    assert (await keys.principal_of("new")).owner == "ada"
    with pytest.raises(HoldfastError):
        await keys.principal_of("a")


def test_a_key_is_read_from_two_headers() -> None:
    assert key_of({b"x-api-key": b"k"}) == "k"
    assert key_of({b"authorization": b"Bearer k"}) == "k"
    for value in (b"", b"Basic k", b"Bearer ", b"k"):
        assert key_of({b"authorization": value} if value else {}) is None


def test_a_short_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    with pytest.raises(ValueError, match="at least 32 characters"):
        read_secrets(tmp_path / "secret", tmp_path / "none")


def test_log_lines_cannot_be_forged() -> None:
    record = logging.LogRecord("gateway", logging.INFO, "", 0, "image %s", ("a\n\x1b[31mERROR\x00",), None)
    line = LineFormatter().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    assert "\\n\\x1b[31mERROR\\x00" in line


def test_metrics_are_prometheus_text() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.count("requests_total", method="GET", route='/a"b\\\n', status="200")
    metrics.observe("request_seconds", 0.3, route="/")
    metrics.gauge("attached_sessions", 3)
    text = metrics.render()
    assert "# TYPE holdfast_requests_total counter\n" in text
    assert 'holdfast_requests_total{method="GET",route="/a\\"b\\\\\\n",status="200"} 2.0\n' in text
    assert "holdfast_attached_sessions 3.0\n" in text
    assert 'holdfast_request_seconds_bucket{le="0.5",route="/"} 1.0\n' in text
    assert 'holdfast_request_seconds_bucket{le="0.25",route="/"} 0.0\n' in text
    with pytest.raises(KeyError):
        metrics.count("no_such_total")
    with pytest.raises(ValueError, match="label"):
        metrics.count("requests_total", colour="red")


def _connected() -> bool:
    return True


def _disconnected() -> bool:
    return False


def test_a_repeated_post_joins_only_if_its_client_disconnected_or_fell_back() -> None:
    retries = RetryDetection()
    retries.note(b"f", PostedExec("c1", True, _connected))
    assert retries.find(b"f", True) is None
    assert retries.find(b"g", False) is None
    assert retries.find(b"f", False) == "c1"
    assert retries.find(b"f", False) is None
    retries.note(b"f", PostedExec("c2", False, _disconnected))
    assert retries.find(b"f", False) == "c2"
    posted = PostedExec("c3", True, _connected)
    retries.note(b"f", posted)
    posted.answered(connected=True)
    assert retries.find(b"f", True) is None
    assert retries.find(b"f", False) == "c3"
    posted = PostedExec("c4", True, _connected)
    retries.note(b"f", posted)
    posted.answered(connected=False)
    assert retries.find(b"f", True) == "c4"


def test_the_number_of_remembered_posts_is_bounded() -> None:
    retries = RetryDetection()
    for number in range(10_000):
        retries.note(b"%d" % (number % 5000), PostedExec("c", True, None))
    assert len(retries._posted) <= 4096


def test_settings_come_from_the_environment() -> None:
    settings = from_environment({"HOLDFAST_DATA": "/data", "PORT": "99", "HOLDFAST_ALLOWED_ORIGINS": "https://a, https://b"})
    slow_redis = from_environment({"HOLDFAST_REDIS_TIMEOUT_MS": "3000"}).placement
    assert (slow_redis.step_timeout_s, slow_redis.connect_timeout_s) == (3.0, 2.0)
    assert settings.placement == PlacementSettings(redis_url="unix:///data/redis.sock")
    assert (settings.port, settings.node_socket, settings.allowed_origins) == (
        99,
        Path("/data/node.sock"),
        frozenset({"https://a", "https://b"}),
    )
    for environment in ({"PORT": "x"}, {"HOLDFAST_RUNTIME": "moon"}, {"HOLDFAST_DRAIN_S": "-1"}, {"HOLDFAST_PUBLIC_URL": "example.org"}):
        with pytest.raises(ValueError, match=next(iter(environment))):
            from_environment(environment)


def test_the_pages_host_is_not_below_the_preview_domain() -> None:
    """A program in a sandbox could answer there, and read what the page stores."""
    for url, domain in (
        ("https://preview.example.org", "preview.example.org"),
        ("https://app.preview.example.org:8443", "preview.example.org"),
        ("https://APP.Preview.Example.org.", "preview.EXAMPLE.org."),
        ("http://localhost:8765", "localhost"),
    ):
        with pytest.raises(ValueError, match="HOLDFAST_PUBLIC_URL must not be at or below HOLDFAST_PREVIEW_DOMAIN"):
            from_environment({"HOLDFAST_PUBLIC_URL": url, "HOLDFAST_PREVIEW_DOMAIN": domain})
    for domain in ("*.example.org", "example.org:80", "https://example.org", "a..b", "-a.b", "a b", "x" * 300):
        with pytest.raises(ValueError, match="HOLDFAST_PREVIEW_DOMAIN must be a domain"):
            from_environment({"HOLDFAST_PREVIEW_DOMAIN": domain})
    for url in ("ftp://a", "https://", "https://a/path", "https://user@a"):
        with pytest.raises(ValueError, match="HOLDFAST_PUBLIC_URL must be"):
            from_environment({"HOLDFAST_PUBLIC_URL": url})
    fine = from_environment({"HOLDFAST_PUBLIC_URL": "https://example.org/", "HOLDFAST_PREVIEW_DOMAIN": "Preview.example.org."})
    assert (fine.public_url, fine.preview_domain) == ("https://example.org", "preview.example.org")
