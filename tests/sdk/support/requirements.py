"""What the end-to-end tests need from the machine."""

from __future__ import annotations

from tests.support.requires import requires

STACK = requires("namespaces", "redis")
