"""Which runtime the settings name.

Owns the choice alone. The Kubernetes one is imported only where it is chosen: its client takes 65 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Runtime
from .local import LocalRuntime

if TYPE_CHECKING:
    from gateway.settings import Settings


def runtime_of(settings: Settings) -> Runtime:
    """The runtime, not yet connected to anything."""
    if settings.runtime == "kubernetes":
        from .kubernetes.runtime import KubernetesRuntime

        return KubernetesRuntime(settings.kubernetes, settings.replica)
    return LocalRuntime(settings.node_socket)
