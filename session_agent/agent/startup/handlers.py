"""The handlers of all kinds of channels, imported at once: for processes that cannot import later, as the node's forked agents.

Called by ``warmup`` and tests; ``sessions`` answers a kind that is missing here with ``unsupported``.
"""

from __future__ import annotations

from collections.abc import Mapping

from session_agent.agent.session.channels import Factory
from session_agent.agent.startup.lazy_handlers import LazyHandlers

FACTORIES: Mapping[str, Factory] = dict(LazyHandlers())
