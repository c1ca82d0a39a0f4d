"""Which of E2B's own tests fail here, and why: the beginning of a test's name, and the reason that the table shows."""

from __future__ import annotations

from typing import Final

_URL: Final = "with E2B_SANDBOX_URL a signed URL does not say which sandbox it is for; `tests/e2b` tests them below a sandbox's host"
_VERSION: Final = "replaces a function that the SDK 2.63.0 does not call, or expects E2B's own URLs (the tests are of SDK 2.45.1)"
_NETWORK: Final = "lists of addresses, transformations and masks of the network are refused"
_PORTS: Final = "needs a public URL of a port below E2B's domain; ports are previews here, with a link or key"
_PAUSE: Final = "pausing at the time-out is refused"

_REASONS: Final = (
    ("files.test_secured::test_download_url", _URL),
    ("test_config_propagation::test_connect_sets_stable_host_routing_headers", _VERSION),
    ("test_connect::test_connect_normalizes_unset_tokens", _VERSION),
    ("test_create::test_mcp_gateway_start_failure_kills_created_sandbox", "MCP servers of templates are refused"),
    ("test_create::test_keep_memory_none_defaults_to_full_memory", _PAUSE),
    ("test_create::test_auto_", _PAUSE),
    ("test_network::", _NETWORK),
    ("test_host::test_ping_server", _PORTS),
    ("test_internet_access::test_internet_access_default", "on one machine the network is off unless it is requested"),
    ("test_internet_access::test_internet_access_enabled", "the machine of the run has no way to the internet"),
    ("test_snapshot_filesystem_only::", "boot_id is the machine's: a sandbox has no kernel of its own on one machine"),
)


def reason_of(test: str) -> str:
    """Why a test of this name (``sync.sandbox_sync.test_x::test_y``) fails; "" if it should pass."""
    return next((reason for part, reason in _REASONS if f".{part}" in f".{test}"), "")
