"""What a smoke test does with a deployment: sandboxes made, used and deleted, each step checked and timed.

Owns the steps and their figures. One file on the standard library and the SDK alone, because it also runs as the text of a pod's command
(`--in-cluster`). With ``--until-told`` it keeps sessions at work until SIGTERM, for a rollout to happen in between. Prints one line of
JSON; 0 when nothing failed.
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
"""Printed once every session of ``--until-told`` has had its first answer."""


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

    def report(self) -> dict[str, Any]:
        steps = {}
        for step, times in self.times.items():
            times.sort()
            steps[step] = {"n": len(times), "p50_ms": round(times[len(times) // 2], 1), "max_ms": round(times[-1], 1)}
        return {"failed": len(self.failures), "failures": self.failures[:20], "steps": steps}


def episode(client: SandboxClient, options: argparse.Namespace, figures: Figures) -> None:
    """One sandbox, from nothing to nothing."""
    made = figures.timed("create", lambda: create(client, options))
    try:
        with made as sandbox:
            shell = figures.timed("open a shell", sandbox.shell)
            figures.timed("first command", lambda: shell.run("cd / && export N=41", timeout=30))
            result = figures.timed("command", lambda: shell.run("echo $((N + 1)); pwd >&2; (exit 3)", timeout=30))
            figures.expect("a living shell", (result.stdout, result.stderr, result.exit_code), ("42\n", "/\n", 3))
            result = figures.timed("exec", lambda: sandbox.exec(["/bin/sh", "-c", "cat; exit 4"], input="to the end", timeout=30))
            figures.expect("a one-off command", (result.stdout, result.exit_code), ("to the end", 4))
            content = bytes(range(256)) * 4096
            figures.timed("write 1 MiB", lambda: sandbox.files.write(options.folder + "/holdfast-smoke", content))
            figures.expect(
                "the file's size", len(figures.timed("read 1 MiB", lambda: sandbox.files.read(options.folder + "/holdfast-smoke"))), 2**20
            )
            shell.close()
            figures.timed("delete", sandbox.delete)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure to report
        figures.failed(f"{type(error).__name__}: {error}")


def create(client: SandboxClient, options: argparse.Namespace) -> Sandbox:
    return client.create_sandbox(
        options.image,
        cpu=options.cpu,
        memory=options.memory,
        timeout=options.ready,
        lifetime_s=3600,
        heartbeat_timeout_s=60,
        labels={"purpose": "smoke"},
        block_network=options.network == "blocked",
    )


def work(client: SandboxClient, options: argparse.Namespace, figures: Figures, told: threading.Event, started: threading.Semaphore) -> None:
    """One session at work until told: a number counted in the shell's own memory, so that a lost or repeated command shows."""
    try:
        with create(client, options) as sandbox:
            shell = sandbox.shell()
            shell.run("count=0")
            started.release()
            done = 0
            while not told.is_set():
                result = figures.timed("command", lambda: shell.run("count=$((count + 1)); echo $count", timeout=60))
                done += 1
                figures.expect("the count", (result.stdout, result.exit_code), (f"{done}\n", 0))
                told.wait(options.pause)
    except Exception as error:  # noqa: BLE001 - see above
        figures.failed(f"{type(error).__name__}: {error}")
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
    parser.add_argument("--until-told", action="store_true")
    options = parser.parse_args(arguments)
    figures, told, started = Figures(), threading.Event(), threading.Semaphore(0)
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    with SandboxClient() as client:
        if options.until_told:
            threads = [threading.Thread(target=work, args=(client, options, figures, told, started)) for _ in range(options.count)]
        else:
            threads = [threading.Thread(target=episode, args=(client, options, figures)) for _ in range(options.count)]
        for thread in threads:
            thread.start()
        if options.until_told:
            for _ in threads:
                started.acquire()
            print(AT_WORK, flush=True)
        for thread in threads:
            thread.join()
    print(json.dumps(figures.report()), flush=True)
    return 1 if figures.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
