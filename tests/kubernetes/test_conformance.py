"""The contract of runtimes on the fake cluster: real HTTP, real watches, a real session agent in every pod."""

from __future__ import annotations

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.agents.dial import dial
from gateway.runtimes.base import capabilities
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from tests.conformance.runtimes import CREATE_S, EgressConformance, RuntimeConformance, order
from tests.gateway.harness import SECRET


class TestKubernetesRuntime(RuntimeConformance, EgressConformance):
    """The whole contract."""

    async def test_it_has_what_a_cluster_has(self, runtime: KubernetesRuntime) -> None:
        assert capabilities(runtime) == ["images", "pools", "egress", "collection"]

    async def test_the_agent_proves_its_identity_and_its_pod(self, runtime: KubernetesRuntime) -> None:
        request = order("sb-1", incarnation="1" * 16, token=agent_token(SECRET, "sb-1", "1" * 16))
        made = await runtime.create(request, CREATE_S)
        (await dial(made, (SECRET,), "sb-1", request.spec.incarnation, 60.0)).transport.abort()
        address, _, uid = made.partition("#")
        assert uid
        for endpoint, incarnation in ((made, "0" * 16), (f"{address}#{'0' * len(uid)}", request.spec.incarnation)):
            with pytest.raises(HoldfastError) as caught:
                await dial(endpoint, (SECRET,), "sb-1", incarnation, 60.0)
            assert caught.value.code == "agent_identity"
