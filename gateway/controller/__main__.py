"""``python -m gateway.controller``: one controller, from its environment to its end. SIGTERM ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import sys

from gateway.placement.redis_store import RedisStore
from gateway.runtimes.choose import runtime_of
from gateway.settings import Settings, SettingsError, from_environment
from gateway.telemetry import configure_logging

from .loop import Controller


async def serve(settings: Settings) -> None:
    store = RedisStore(settings.placement)
    runtime = runtime_of(settings)
    holder = f"{settings.replica}-{secrets.token_hex(4)}"
    controller = Controller(store, runtime, holder, settings.controller)
    task = asyncio.create_task(controller.run(), name="controller")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        await runtime.aclose()
        await store.aclose()


def main() -> int:
    """0 after SIGTERM; 78 when the settings do not do."""
    configure_logging()
    try:
        settings = from_environment()
    except SettingsError as error:
        print(f"controller: {error}", file=sys.stderr)
        return 78
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
