"""``create``, ``list`` and ``rm``."""

from __future__ import annotations

import argparse
import time

from holdfast import NotFoundError, SandboxClient, SandboxInfo, SandboxLostError
from holdfast.cli.output import age, note, pairs, say, say_json, table


def create(arguments: argparse.Namespace) -> None:
    with SandboxClient() as client:
        sandbox = client.create_sandbox(
            arguments.image,
            cpu=arguments.cpu,
            memory=arguments.memory,
            disk=arguments.disk,
            env=pairs(arguments.env, "--env"),
            labels=pairs(arguments.label, "--label"),
            timeout=arguments.timeout,
            lifetime_s=arguments.lifetime,
            idle_timeout_s=arguments.idle_timeout,
            sandbox_id=arguments.id,
            block_network=not arguments.network,
        )
        if arguments.json:
            say_json(sandbox.info().to_map())
        else:
            say(sandbox.id)


def list_(arguments: argparse.Namespace) -> None:
    with SandboxClient() as client:
        found = sorted(client.list_sandboxes(pairs(arguments.label, "--label")), key=lambda info: info.created_at)
    if arguments.json:
        say_json([info.to_map() for info in found])
    elif arguments.quiet:
        for info in found:
            say(info.sandbox_id)
    else:
        now = time.time()
        table(("SANDBOX", "IMAGE", "STATUS", "AGE", "CPU", "MEMORY", "LABELS"), (_row(info, now) for info in found))


def _row(info: SandboxInfo, now: float) -> tuple[object, ...]:
    labels = ",".join(f"{name}={value}" for name, value in sorted(info.labels.items()))
    status = f"{info.status} ({info.reason})" if info.reason else info.status
    return (info.sandbox_id, info.image, status, age(info.created_at, now), info.cpu, info.memory, labels)


def remove(arguments: argparse.Namespace) -> int:
    missing: list[str] = []
    removed: list[str] = []
    with SandboxClient() as client:
        for sandbox_id in arguments.sandbox:
            try:
                there = client.get_sandbox(sandbox_id).delete()
            except (NotFoundError, SandboxLostError):
                there = False
            (removed if there else missing).append(sandbox_id)
    if arguments.json:
        say_json({"removed": removed, "missing": missing})
    for sandbox_id in missing if not arguments.force else ():
        note(f"holdfast: there is no sandbox {sandbox_id}")
    return 125 if missing and not arguments.force else 0
