"""The handlers of channels, imported when they are first wanted: an agent answers before it can do everything.

Owns the moment of the import and nothing else; the table is ``handlers``'. In a container ``server`` asks for it as soon as it listens. The
node's warm process has imported it long before anything is forked (``warmup``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from session_agent.agent.session.channels import Factory


class LazyHandlers(Mapping[str, Factory]):
    """``handlers.FACTORIES``, by need."""

    def load(self) -> Mapping[str, Factory]:
        """The table; the first call imports what is in it."""
        from .handlers import FACTORIES

        return FACTORIES

    def __getitem__(self, kind: str) -> Factory:
        return self.load()[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.load())

    def __len__(self) -> int:
        return len(self.load())
