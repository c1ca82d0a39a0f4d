"""The fake cluster as a separate process, with minimal agents: prints its address, ends when its standard input ends."""

from __future__ import annotations

import asyncio
import sys

from .kubelet import Kubelet
from .probe_pods import ProbePods
from .server import FakeApi
from .thin import ThinAgent


async def main() -> None:
    api = FakeApi()
    api.probed = False
    for store in api.stores.values():
        store.resize(100_000)
    async with api.serve(), Kubelet(api, cores=1e6, agent=ThinAgent).run():
        with ProbePods(api).run():
            print(api.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
