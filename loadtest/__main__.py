"""Starts locust on the load test: ``python -m loadtest --users 20 --duration 60 --shape spike`` (``make load``).

Owns the stack that is used if ``HOLDFAST_URL`` is not set, the files for locust, the folder of reports, and the exit status: locust's, or 1
if a process of its own stack grew in a soak. It passes unknown arguments to locust (``--max-ms``, ``ChurnUser``). Does not import locust.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast_server.embed import EmbeddedStack, free_port, running_stack
from holdfast_server.errors import UpError

from loadtest import growth
from loadtest.footprint import Footprint
from loadtest.shapes import SHAPES
from loadtest.watch import left_behind, watched

TOP = Path(__file__).resolve().parent
STOP_TIMEOUT_S = 10


def arguments(words: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """The arguments of this program, and all others for locust."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=20, help="users, at the peak of a shape")
    parser.add_argument("--duration", default="60", help="length of the run: 90, 20m, 1h30m")
    parser.add_argument("--shape", choices=SHAPES, help="how the number of users changes; without one all start at once, --rate a second")
    parser.add_argument("--rate", type=float, default=10.0, help="users started per second")
    parser.add_argument("--workers", type=int, default=0, help="locust worker processes beside the master; 0: one process does all")
    parser.add_argument("--web", action="store_true", help="locust's web page on port 8089 instead of a run at once")
    parser.add_argument("--sample-s", type=float, default=5.0, help="how often to sample the processes of a stack of its own, in seconds")
    parser.add_argument("--reports", type=Path, default=Path("build/load"), help="folder of the CSV files and the HTML report")
    return parser.parse_known_args(words)


def command(options: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """The locust command line."""
    files = [TOP / "locustfile.py"] + ([TOP / "shapefile.py"] if options.shape else [])
    line = [sys.executable, "-m", "locust", "-f", ",".join(map(str, files))]
    line += ["--users", str(options.users), "--spawn-rate", f"{options.rate:g}", "--run-time", options.duration]
    line += ["--stop-timeout", str(STOP_TIMEOUT_S)]
    line += ["--csv", str(options.reports / "load"), "--html", str(options.reports / "load.html")]
    line += ["--shape", options.shape] if options.shape else []
    line += ["--processes", str(options.workers)] if options.workers else []
    line += ["--web-host", "127.0.0.1"] if options.web else ["--headless", "--only-summary"]
    return [*line, *rest]


@contextlib.contextmanager
def service(controller_metrics: int) -> Iterator[EmbeddedStack | None]:
    """A stack that runs until the end of the block, with its controller's metrics on that port; None if ``HOLDFAST_URL`` names another
    one."""
    if "HOLDFAST_URL" in os.environ:
        yield None
        return
    data = Path(os.environ.get("HOLDFAST_DATA") or ".holdfast").absolute() / "load"
    print("starting a stack of its own (set HOLDFAST_URL and HOLDFAST_API_KEY to use another)", flush=True)
    with running_stack(data, {"HOLDFAST_IMAGE_FALLBACK": "host", "HOLDFAST_METRICS_PORT": str(controller_metrics)}) as stack:
        yield stack


def observed(locust: subprocess.Popen[bytes], stack: EmbeddedStack, controller_metrics: int, options: argparse.Namespace) -> int:
    """Wait for the end of locust and sample the stack meanwhile; the exit status."""
    metrics = {"gateway": f"{stack.url}/metrics", "controller": f"http://127.0.0.1:{controller_metrics}/metrics"}
    footprint = Footprint(stack.data, {"supervisor": stack.runner.pid, "locust": locust.pid}, metrics)
    with watched(footprint, options.reports / "footprint.csv", options.sample_s) as samples:
        status = locust.wait()
    if options.shape != "soak":
        return status
    table = growth.table(samples)
    (options.reports / "footprint.txt").write_text(table + "\n")
    print(table)
    found = growth.broken(samples) + left_behind(footprint)
    print("".join(f"threshold: {sentence}\n" for sentence in found), end="", flush=True)
    return 1 if found else status


def main(words: Sequence[str] | None = None) -> int:
    options, rest = arguments(words)
    options.reports.mkdir(parents=True, exist_ok=True)
    try:
        controller_metrics = free_port()
        with service(controller_metrics) as stack:
            variables = {"HOLDFAST_URL": stack.url, "HOLDFAST_API_KEY": stack.key} if stack is not None else {}
            locust = subprocess.Popen(command(options, rest), env={**os.environ, **variables})
            # Ctrl-C reaches locust by itself: the terminal sends it to both, and locust ends the run in order.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: locust.terminate())
            return observed(locust, stack, controller_metrics, options) if stack is not None else locust.wait()
    except UpError as why:
        print(f"{why}\n{why.hint}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
