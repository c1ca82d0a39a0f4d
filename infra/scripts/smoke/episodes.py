"""The steps of a smoke test: creating, using and deleting sandboxes, each step checked and timed.

Owns the steps, their figures and the verdict: the test passes only if every requested sandbox has done every step (``unmet``), so that a
thread that ends without an error also fails it. One file that uses only the standard library and the SDK, because it also runs as the text
of a pod's command (`--in-cluster`). With ``--until-signal`` it keeps sessions running commands until SIGTERM, for a rollout in between.
Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast import Sandbox, SandboxClient

AT_WORK = "at work"
"""Printed once every session of ``--until-signal`` has had its first answer."""
STEPS = ("create", "open a shell", "first command", "command", "exec", "write 1 MiB", "read 1 MiB", "delete")
"""The steps that each sandbox does once."""
WORK_STEPS = ("create", "open a shell", "first command", "command", "delete")
"""The same with ``--until-signal``; there ``command`` is done at least once, and again until SIGTERM."""


class Figures:
    """Milliseconds by step, and what went wrong."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def timed(self, step: str, work: Callable[[], Any]) -> Any:
        began = time.monotonic()
        answer = work()
        with self._lock:
            self.times.setdefault(step, []).append((time.monotonic() - began) * 1000)
        return answer

    def failed(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)

    def expect(self, what: str, got: object, wanted: object) -> None:
        if got != wanted:
            self.failed(f"{what}: {got!r} instead of {wanted!r}")

    def report(self, count: int, wanted: tuple[str, ...]) -> dict[str, Any]:
        steps: dict[str, Any] = {}
        for step, times in self.times.items():
            times.sort()
            steps[step] = {"n": len(times), "p50_ms": round(times[len(times) // 2], 1), "max_ms": round(times[-1], 1)}
        failures = [*self.failures, *unmet(steps, count, wanted)]
        return {"failed": len(failures), "failures": failures[:20], "asked": count, "steps": steps}


def unmet(steps: dict[str, Any], count: int, wanted: tuple[str, ...]) -> list[str]:
    """The steps that fewer than ``count`` sandboxes have done; a run without sandboxes fails too."""
    if count < 1:
        return ["no sandbox was asked for"]
    done = {step: int(steps.get(step, {}).get("n", 0)) for step in wanted}
    return [f"{step}: done by {n} of {count} sandboxes" for step, n in done.items() if n < count]


def episode(client: SandboxClient, options: argparse.Namespace, figures: Figures) -> None:
    """Create a sandbox, use it in each way once, and delete it."""
    try:
        with figures.timed("create", lambda: create(client, options)) as sandbox:
            shell = figures.timed("open a shell", sandbox.shell)
            result = figures.timed("first command", lambda: shell.run("cd / && export N=41", timeout=30))
            figures.expect("the first command", (result.stderr, result.exit_code), ("", 0))
            result = figures.timed("command", lambda: shell.run("echo $((N + 1)); pwd >&2; (exit 3)", timeout=30))
            figures.expect("a living shell", (result.stdout, result.stderr, result.exit_code), ("42\n", "/\n", 3))
            result = figures.timed("exec", lambda: sandbox.exec(["/bin/sh", "-c", "cat; exit 4"], input="to the end", timeout=30))
            figures.expect("a one-off command", (result.stdout, result.exit_code), ("to the end", 4))
            content = bytes(range(256)) * 4096
            figures.timed("write 1 MiB", lambda: sandbox.files.write(options.folder + "/holdfast-smoke", content))
            back = figures.timed("read 1 MiB", lambda: sandbox.files.read(options.folder + "/holdfast-smoke"))
            figures.expect("the file's size and content", (len(back), back == content), (2**20, True))
            shell.close()
            figures.timed("delete", sandbox.delete)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure to report
        figures.failed(f"{type(error).__name__}: {error}")


def create(client: SandboxClient, options: argparse.Namespace) -> Sandbox:
    return client.create_sandbox(
        options.image,
        cpu=options.cpu,
        memory=options.memory,
        ready_timeout_s=options.ready,
        lifetime_s=3600,
        heartbeat_timeout_s=60,
        labels={"purpose": "smoke"},
        block_network=options.network == "blocked",
    )


def work(client: SandboxClient, options: argparse.Namespace, figures: Figures, stop: threading.Event, started: threading.Semaphore) -> None:
    """Run commands in one session until the event: each increments a number in the shell's memory, which shows a lost or repeated
    command."""
    begun = False
    try:
        with figures.timed("create", lambda: create(client, options)) as sandbox:
            shell = figures.timed("open a shell", sandbox.shell)
            result = figures.timed("first command", lambda: shell.run("count=0", timeout=60))
            figures.expect("the first command", (result.stderr, result.exit_code), ("", 0))
            begun = True
            started.release()
            done = 0
            while done == 0 or not stop.is_set():
                result = figures.timed("command", lambda: shell.run("count=$((count + 1)); echo $count", timeout=60))
                done += 1
                figures.expect("the count", (result.stdout, result.exit_code), (f"{done}\n", 0))
                stop.wait(options.pause)
            figures.timed("delete", sandbox.delete)
    except Exception as error:  # noqa: BLE001 - see above
        figures.failed(f"{type(error).__name__}: {error}")
    finally:
        if not begun:
            started.release()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="episodes")
    parser.add_argument("--image", default="busybox")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--cpu", default="100m")
    parser.add_argument("--memory", default="256Mi")
    parser.add_argument("--folder", default="/tmp")
    parser.add_argument("--network", default="blocked")
    parser.add_argument("--ready", type=float, default=120)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--until-signal", action="store_true")
    options = parser.parse_args(arguments)
    figures, stop, started = Figures(), threading.Event(), threading.Semaphore(0)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with SandboxClient() as client:
        if options.until_signal:
            threads = [threading.Thread(target=work, args=(client, options, figures, stop, started)) for _ in range(options.count)]
        else:
            threads = [threading.Thread(target=episode, args=(client, options, figures)) for _ in range(options.count)]
        for thread in threads:
            thread.start()
        if options.until_signal:
            for _ in threads:
                started.acquire()
            print(AT_WORK, flush=True)
        for thread in threads:
            thread.join()
    report = figures.report(options.count, WORK_STEPS if options.until_signal else STEPS)
    print(json.dumps(report), flush=True)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
