"""`make demo`: gets the material, finds or starts a stack, plays the episode, prints its cost.

Owns the command line and the exit status: 0 when tests that failed pass at the end, 1 when the service failed, 2 when
the demo itself cannot go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast import HoldfastError, SandboxClient
from holdfast_server.embed import running_stack
from holdfast_server.errors import UpError

from infra.demo import live, material, policy
from infra.demo.episode import Episode, check, play_over_rest
from infra.demo.material import DemoError
from infra.demo.summary import summary


@contextlib.contextmanager
def service(data: Path) -> Iterator[tuple[str, str]]:
    """URL and key: those of HOLDFAST_URL, else of a stack that lives as long as the block."""
    if "HOLDFAST_URL" in os.environ:
        key = os.environ.get("HOLDFAST_API_KEY", "")
        if not key:
            raise DemoError("HOLDFAST_URL is set but HOLDFAST_API_KEY is not", hint="set -a; . .holdfast/env; set +a")
        yield os.environ["HOLDFAST_URL"], key
        return
    print("starting a stack of its own (set HOLDFAST_URL to use another) …", flush=True)
    started = time.perf_counter()
    with running_stack(data / "stack", {"HOLDFAST_IMAGE_FALLBACK": "host"}) as stack:
        print(f"ready after {time.perf_counter() - started:.1f} s: {stack.url}", flush=True)
        yield stack.url, stack.key


def run(options: argparse.Namespace, model: live.Model | None, data: Path) -> None:
    print(f"{material.PROJECT} {material.BROKEN}: a release with a known bug, from the package registry", flush=True)
    fetched = material.fetch(data / "downloads")
    with service(data) as (url, key), SandboxClient(url, key) as client:
        started = time.perf_counter()
        with client.create_sandbox(options.image, ready_timeout_s=120) as sandbox:
            created_s = time.perf_counter() - started
            print(f"sandbox {sandbox.id} from {options.image}, ready after {created_s * 1e3:.0f} ms", flush=True)
            turns = policy.recorded(fetched)
            with sandbox.shell() as shell:
                episode = Episode(sandbox, shell)
                if model is None:
                    episode.play(turns)
                else:
                    episode.quiet = True
                    episode.play([turn for turn in turns if turn.prepares])
                    episode.played.clear()
                    live.drive(episode, model, options.turns)
                    result = shell.run(f"cd {policy.TREE}; suite {policy.TARGET} tests.test_more tests.test_recipes", timeout=60)
                    check(policy.Turn("Is it repaired?", expect="OK"), result.exit_code, result.stdout)
            total_s = time.perf_counter() - started
        compared = None
        if options.rest and model is None:
            print("\nnow the same commands over REST, one call each …", flush=True)
            with (
                client.create_sandbox(options.image, ready_timeout_s=120) as sandbox,
                SandboxClient(url, key, transport="rest") as caller,
            ):
                compared = play_over_rest(sandbox, caller, turns)
        print(f"\n{'─' * 78}\n{policy.TARGET} failed and passes now.\n")
        print(summary(episode.played, created_s, total_s, compared), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="One long agent episode in a sandbox.")
    parser.add_argument("--live", action="store_true", help="let a model drive (OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL)")
    parser.add_argument("--turns", type=int, default=60, help="limit of a model's turns (default: 60)")
    parser.add_argument("--image", default="host", help="the sandbox's image; it needs python3 (default: host)")
    parser.add_argument("--no-rest", action="store_false", dest="rest", help="leave out the comparison with REST")
    options = parser.parse_args()
    try:
        model = live.Model.from_environment() if options.live else None
        run(options, model, Path(os.environ.get("HOLDFAST_DATA") or ".holdfast").absolute() / "demo")
    except (DemoError, UpError) as error:
        print(f"\ndemo: {error}\n      {error.hint}", file=sys.stderr)
        return 2
    except HoldfastError as error:
        print(f"\ndemo: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, subprocess.SubprocessError) as error:
        print(f"\ndemo: ended by {type(error).__name__}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
