"""The class of the sessions of a client: with traces or without. A client without them does not import OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._transport.session.engine import Engine

if TYPE_CHECKING:
    from holdfast._options import Options


def engine_of(options: Options) -> type[Engine]:
    """The class of the engines of a client."""
    if options.tracing:
        from holdfast._transport.session.traced import TracedEngine

        return TracedEngine
    return Engine
