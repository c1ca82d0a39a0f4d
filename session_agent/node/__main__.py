"""``python -m session_agent.node`` serves; ``… doctor [--json]`` checks the machine."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import logging
import os
import signal
import sys

from holdfast_wire.errors import HoldfastError
from holdfast_wire.logs import configure_logging

from session_agent.node import subordinate_ids

if __name__ == "__main__":  # before the modules below, which ask for the user's id
    subordinate_ids.enter()

# ruff: noqa: I001
from session_agent.node import doctor, recovery, settings
from session_agent.node.images.layers import LayerLimits
from session_agent.node.images.pull import PullSettings
from session_agent.node.images.registries import parse
from session_agent.node.images.store import ImageStore
from session_agent.node.sandboxes import Sandboxes
from session_agent.node.server import NodeServer
from session_agent.node.settings import NodeSettings


log = logging.getLogger("session_agent.node")


async def _serve(config: NodeSettings) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    if subordinate_ids.problem is not None:
        why, fix = subordinate_ids.problem, subordinate_ids.problem.fix
        log.warning("sandboxes have a single user id, without su, apt-get or other users: %s%s", why, f"; {fix}" if fix else "")
    pulls = PullSettings(
        parse(config.registries), config.id_base - 1, LayerLimits().size_bytes, auth_files=config.auth_files, proxy=config.proxy
    )
    images = ImageStore(config.images_dir, config.image_fallback, pulls=pulls)
    sandboxes = Sandboxes(config, images, privileged=os.geteuid() == 0)
    images.in_use = sandboxes.uses_image
    images.before_remove = sandboxes.spares.drop_image
    images.layer_in_use = sandboxes.uses_layer
    server = NodeServer(config, sandboxes, images)
    try:
        await sandboxes.start()
        await asyncio.to_thread(images.open, sandboxes.stored_ids)
        await sandboxes.load_suspended()
        await server.start()
    except BaseException:
        await server.stop()
        raise
    log.info("serving on %s", config.socket_path)
    await ended.wait()
    await server.stop()


def main(argv: list[str]) -> int:
    """Returns 0 after a clean stop, 1 if this machine cannot run sandboxes or another node runs already, 78 if the settings are invalid."""
    configure_logging()
    try:
        config = settings.from_environment(os.environ)
        parse(config.registries)
    except ValueError as error:
        print(f"node: {error}", file=sys.stderr)
        return 78
    if argv[:1] == ["doctor"]:
        return _doctor(config, as_json="--json" in argv)
    os.umask(0o022)  # files created here are visible in sandboxes to all of their users; the folder itself is private
    os.makedirs(config.data_dir, mode=0o700, exist_ok=True)
    with open(os.path.join(config.data_dir, "node.lock"), "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"node: another node is using {config.data_dir}: stop it, or set HOLDFAST_DATA", file=sys.stderr)
            return 1  # the other node may be about to end
        try:
            if argv[:1] == ["sweep"]:
                recovery.sweep_all(config)
                return 0
            asyncio.run(_serve(config))
        except HoldfastError as error:
            print(f"node: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            print(f"node: {error.filename or config.data_dir} cannot be used: {error.strerror or error}", file=sys.stderr)
            return 1
    return 0


def _doctor(config: NodeSettings, *, as_json: bool) -> int:
    checks = doctor.run(config)
    if as_json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        for check in checks:
            print(f"{'ok     ' if check.ok else 'MISSING'} {check.name}: {check.detail}")
            if not check.ok and check.fix:
                print(f"        {check.fix}")
    return 0 if all(check.ok for check in checks if check.required) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
