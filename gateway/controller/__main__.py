"""``python -m gateway.controller``: one controller, from start to exit. SIGTERM ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import sys
from secrets import token_hex

from holdfast_wire.logs import configure_logging

from gateway.agents.dial import idle_time
from gateway.identity.secrets import read_secrets
from gateway.loop_lag import measure_lag
from gateway.metrics import Metrics
from gateway.placement.store import PlacementStore
from gateway.pools import PoolsFile
from gateway.runtime_choice import runtime_of
from gateway.settings import Settings, from_environment

from .loop import Controller
from .metrics_server import serve_metrics
from .pool_refill import PoolRefill, Prepull


async def serve(settings: Settings, secrets: tuple[str, ...], store: PlacementStore) -> None:
    runtime = runtime_of(settings)
    holder = f"{settings.replica}-{token_hex(4)}"
    metrics = Metrics()
    pool_refill = prepull = None
    if settings.runtime != "local":  # the node of one machine manages its own spares
        pools = PoolsFile(settings.pools_file)
        pool_refill = PoolRefill(store, runtime, pools.read, secrets[0], settings.controller, metrics)
        prepull = Prepull(store, runtime, pools.prepull, metrics)
    controller = Controller(
        store,
        runtime,
        holder,
        settings.controller,
        pool_refill,
        settings.admission,
        metrics,
        prepull,
        functools.partial(idle_time, secrets),
    )
    task = asyncio.create_task(controller.run(), name="controller")
    lag = asyncio.create_task(measure_lag(metrics), name="measurement of the event loop's lag")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        async with contextlib.AsyncExitStack() as stack:
            if settings.metrics_port is not None:
                await stack.enter_async_context(serve_metrics(settings.metrics_host, settings.metrics_port, metrics.render))
            with contextlib.suppress(asyncio.CancelledError):
                await task
    finally:
        lag.cancel()
        await runtime.aclose()
        await store.aclose()


def main() -> int:
    """0 after SIGTERM; 78 when the settings cannot be used."""
    configure_logging()
    try:
        settings = from_environment()
        configure_logging(settings.log_format)
        secrets = read_secrets(settings.secret_file, settings.other_secrets_file)
        store = PlacementStore(settings.placement)
    except (OSError, ValueError) as error:
        print(f"controller: {error}", file=sys.stderr)
        return 78
    asyncio.run(serve(settings, secrets, store))
    return 0


if __name__ == "__main__":
    sys.exit(main())
