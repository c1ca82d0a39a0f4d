"""Creates the runtime that the settings name. The Kubernetes runtime is imported only if it is chosen, because its client takes 65 MB."""

from __future__ import annotations

from gateway.runtimes.base import Runtime
from gateway.runtimes.local import LocalRuntime

from .settings import Settings


def runtime_of(settings: Settings) -> Runtime:
    """The runtime, not yet connected to anything."""
    if settings.runtime == "kubernetes":
        from gateway.runtimes.kubernetes.runtime import KubernetesRuntime

        return KubernetesRuntime(settings.kubernetes, settings.replica)
    return LocalRuntime(settings.node_socket)
