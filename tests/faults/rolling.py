"""Chaos scenarios with three gateway replicas behind a plain TCP balancer: rollouts under load, and an outage of Redis.

`rolling` sends SIGTERM to one replica after the other, ten times, under 200 active sessions: no command fails, resume p99 ≤ 3 s.
`redis` stops Redis for a minute: sessions continue, creates are refused at once with `Retry-After`, and a session whose connection
is cut resumes through another replica with its ticket.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import time
from collections.abc import AsyncIterator

from holdfast import AsyncSandboxClient

from tests.support.pace import Stopwatch
from tests.support.until import until

from .context import IMAGE, Context, Replicas, check_all, settle, watch
from .history import History
from .load import Appender
from .proxy import FaultProxy
from .report import Outcome, percentile

ROLLOUTS = 10
SHORT_S = 90.0
SESSIONS = 200
SANDBOXES = 20
RESUME_P99_S = 3.0
REDIS_AWAY_S = 60.0
CREATE_ANSWER_S = 1.0


@contextlib.asynccontextmanager
async def loaded(
    context: Context, replicas: Replicas, outcome: Outcome, *, sessions: int, sandboxes: int, pause_s: float
) -> AsyncIterator[tuple[FaultProxy, AsyncSandboxClient, list[Appender]]]:
    """Run ``sessions`` that append through a balancer for the duration of the block; check them at its end."""
    stack, running = replicas.stack, [True]
    with FaultProxy(*replicas.targets, seed=context.seed) as balancer:
        client = AsyncSandboxClient(balancer.url, stack.key)
        made = [await client.create_sandbox(IMAGE) for _ in range(sandboxes)]
        histories = {sandbox.id: History() for sandbox in made}
        handles = [client.get_sandbox(made[n % sandboxes].id) for n in range(sessions)]
        appenders = [
            Appender(f"s{n}", handle, histories[handle.id], by_exec=n % 4 == 3, rng=context.rng(n), pause_s=pause_s)
            for n, handle in enumerate(handles)
        ]
        tasks = [asyncio.create_task(appender.run(lambda: running[0])) for appender in appenders]
        watching = asyncio.create_task(watch(context, outcome.name, tasks, appenders, [balancer]))
        try:
            await asyncio.to_thread(until, lambda: all(a.done for a in appenders), deadline_s=60, what="every session to be active")
            yield balancer, client, appenders
            running[0] = False
            await watching
        finally:
            for task in (*tasks, watching):
                task.cancel()
        check_all(outcome, stack.data, histories)
        settle(outcome, appenders, [balancer])
        outcome.expect(not outcome.failed + outcome.unknown, f"{outcome.failed} failed and {outcome.unknown} unknown commands")
        await asyncio.gather(*[handle.close() for handle in handles])
        await asyncio.gather(*[sandbox.delete() for sandbox in made])
        await client.close()


async def rolling(context: Context, replicas: Replicas, outcome: Outcome, seconds: float) -> None:
    """Ten rollouts of three replicas; fewer only in a run with little time, or on a machine that takes four times as long."""
    started = time.monotonic()
    limit_s = seconds if seconds < SHORT_S else 4 * seconds
    rollouts = 0
    async with loaded(context, replicas, outcome, sessions=SESSIONS, sandboxes=SANDBOXES, pause_s=1.0):
        while rollouts < ROLLOUTS and (context.full or time.monotonic() - started < limit_s):
            for name, port in zip(replicas.names, replicas.ports, strict=True):
                await asyncio.to_thread(_roll, replicas, name, port)
                outcome.faults["rolled"] += 1
            rollouts += 1
            context.log(f"rolling  rollout {rollouts} done")
    p99 = percentile(outcome.resumes, 99)
    outcome.expect(p99 <= RESUME_P99_S, f"resume p99 is {p99:.2f} s, over {RESUME_P99_S:g} s")
    outcome.expect(len(outcome.resumes) >= rollouts * SESSIONS, f"only {len(outcome.resumes)} resumes")
    outcome.notes.update({"active sessions": SESSIONS, "rollouts of 3 replicas": rollouts})
    outcome.expect(rollouts == ROLLOUTS or seconds < SHORT_S, f"only {rollouts} rollouts of {ROLLOUTS} in {limit_s:.0f} s")
    outcome.seconds = time.monotonic() - started


def _roll(replicas: Replicas, name: str, port: int) -> None:
    old = replicas.stack.kill_process(name, signal.SIGTERM)
    replicas.stack.wait_restarted(name, old)
    until(lambda: _get(port, "/readyz") == 200, deadline_s=60, what=f"{name} to be ready")


async def redis_away(context: Context, replicas: Replicas, outcome: Outcome, seconds: float) -> None:
    """Stop Redis (SIGSTOP) for a minute, or for the time that is left."""
    started = time.monotonic()
    away_s = REDIS_AWAY_S if context.full else min(REDIS_AWAY_S, seconds)
    stack, slowest, refused = replicas.stack, 0.0, 0
    async with loaded(context, replicas, outcome, sessions=40, sandboxes=8, pause_s=0.1) as (balancer, client, appenders):
        await _move(balancer, replicas.targets[0], appenders)
        moves, resumed = 0, sum(len(appender.resumes) for appender in appenders)
        pid = stack.pid("redis")
        os.kill(pid, signal.SIGSTOP)
        outcome.faults["redis stopped"] += 1
        try:
            end = time.monotonic() + away_s
            before = [appender.done for appender in appenders]
            while time.monotonic() < end:
                status, headers, took_s, code = await asyncio.to_thread(try_create, balancer.port, stack.key)
                slowest, refused = max(slowest, took_s), refused + 1
                outcome.expect(status == 503, f"a create without Redis was answered {status} {code}")
                outcome.expect("retry-after" in headers, "a create without Redis was refused without Retry-After")
                outcome.expect(took_s <= CREATE_ANSWER_S, f"a create without Redis was refused after {took_s:.2f} s")
                moves += 1
                await _move(balancer, replicas.targets[moves % len(replicas.targets)], appenders)
                await asyncio.sleep(min(4.0, max(end - time.monotonic(), 0)))
            stuck = sum(appender.done <= done for appender, done in zip(appenders, before, strict=True))
            outcome.expect(stuck == 0, f"{stuck} sessions made no progress without Redis")
            outcome.notes["sessions resumed through another replica without Redis"] = sum(len(a.resumes) for a in appenders) - resumed
        finally:
            os.kill(pid, signal.SIGCONT)
            balancer.retarget(*replicas.targets)
        back = time.monotonic()
        async with await client.create_sandbox(IMAGE, ready_timeout_s=60) as sandbox:
            outcome.expect((await sandbox.exec("echo up")).stdout == "up\n", "a new sandbox does not work")
        outcome.notes["seconds to a new sandbox after Redis came back"] = round(time.monotonic() - back, 2)
    outcome.notes.update({"seconds without Redis": away_s, "creates refused": refused, "slowest refusal in seconds": round(slowest, 3)})
    outcome.seconds = time.monotonic() - started


async def _move(balancer: FaultProxy, target: str, appenders: list[Appender]) -> None:
    """Cut every session's connection and let it resume through the replica at ``target`` only."""
    resumed = sum(len(appender.resumes) for appender in appenders)
    balancer.retarget(target)
    balancer.cut_all()
    await asyncio.to_thread(_all_resumed, appenders, resumed + len(appenders))


def _all_resumed(appenders: list[Appender], count: int) -> None:
    until(lambda: sum(len(appender.resumes) for appender in appenders) >= count, deadline_s=60, what=f"{count} resumes without Redis")


def try_create(port: int, key: str) -> tuple[int, dict[str, str], float, str]:
    """Send one create without the SDK. Returns status, headers, seconds (without the time that the machine was busy), and code."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        with Stopwatch() as watch:
            connection.request("POST", "/sandboxes", json.dumps({"image": IMAGE}), {"X-API-Key": key, "Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            took_s = watch.elapsed_s
        headers = {name.lower(): value for name, value in answer.getheaders()}
        code = json.loads(body).get("code", "") if "json" in headers.get("content-type", "") else ""
        return answer.status, headers, took_s, code
    finally:
        connection.close()


def _get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
