"""How long sandboxes live: the service's default, how to change it, and warnings about objects that were never closed."""

from __future__ import annotations

import gc
import time
import warnings

import httpx
import pytest
from holdfast import InvalidArgumentError, SandboxClient, SandboxLostError, SandboxNotFoundError

from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash")]

DAY_S = 24 * 3600.0


def test_the_default_is_stated_and_shown(client: SandboxClient, rest: httpx.Client) -> None:
    assert rest.get("/resources").json()["defaults"]["lifetime_s"] == DAY_S
    with client.create_sandbox("host") as sandbox:
        info = sandbox.info()
        assert info.lifetime_s == DAY_S
        assert info.expires_at == pytest.approx(info.created_at + DAY_S, abs=1)
        assert "until 20" in repr(sandbox)
        assert client.get_sandbox(sandbox.id).info().lifetime_s == DAY_S


def test_a_lifetime_can_be_extended_and_set(client: SandboxClient) -> None:
    with client.create_sandbox("host", lifetime_s=60.0) as sandbox:
        made = sandbox.info().expires_at or 0.0
        assert sandbox.extend(600.0).expires_at == pytest.approx(made + 600.0, abs=0.01)
        before = time.time()
        expires_at = sandbox.set_lifetime(30.0).expires_at
        assert expires_at is not None
        assert before + 29.9 < expires_at < time.time() + 30.1
        for wrong in (0, -1, float("nan"), 10**9, True):
            with pytest.raises(InvalidArgumentError):
                sandbox.extend(wrong)
        sandbox.set_lifetime(0.5)

        def gone() -> bool:
            try:
                client.get_sandbox(sandbox.id).refresh()
            except SandboxLostError as lost:
                return lost.reason == "ttl"
            return False

        until(gone, deadline_s=60, what="its lifetime to end the sandbox")
        with pytest.raises(SandboxLostError):
            sandbox.extend(60.0)
    with pytest.raises(SandboxNotFoundError):
        client.get_sandbox("sb-nobody").extend(60.0)


def test_objects_that_were_never_closed_warn(stack: Stack) -> None:
    client = SandboxClient(stack.url, stack.key)
    sandbox = client.create_sandbox("host")
    id_ = sandbox.id
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        del sandbox
        gc.collect()
        del client
        gc.collect()
    messages = [str(warning.message) for warning in caught_warnings]
    assert any(text.startswith(f"sandbox {id_} was neither deleted nor closed and keeps running until 20") for text in messages), messages
    assert any(text.startswith(f"<SandboxClient {stack.url}> was never closed") for text in messages), messages
    with SandboxClient(stack.url, stack.key) as other:
        other.get_sandbox(id_).delete()


def test_closed_objects_do_not_warn(stack: Stack, recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()
    recwarn.clear()  # warnings about objects of other tests
    with SandboxClient(stack.url, stack.key) as client:
        with client.create_sandbox("host"):
            pass
        client.create_sandbox("host").close()
        kept = client.create_sandbox("host")
    del kept, client
    gc.collect()
    assert [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)] == []
