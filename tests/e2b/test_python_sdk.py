"""E2B's unmodified Python SDK, in both its forms, against a whole stack."""

from __future__ import annotations

from tests.e2b.conftest import Facade
from tests.support.requires import requires

pytestmark = requires("namespaces", "redis")


def test_the_synchronous_sdk(facade: Facade) -> None:
    facade.run("sync")


def test_the_asynchronous_sdk(facade: Facade) -> None:
    facade.run("asynchronous")


def test_terminals_input_watches_pauses_and_snapshots(facade: Facade) -> None:
    facade.run("interactive")


def test_signed_urls_and_the_hosts_of_sandboxes(facade: Facade) -> None:
    facade.run("hosts")
