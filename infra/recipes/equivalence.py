"""The published run of `holdfast recipes equivalence`: 100 tasks of our own, one scripted agent on the bare machine and in sandboxes.

Owns which tasks, the folder where it goes on, and the page. The comparison is ``swe.equivalence``'s. It stands for the paper's Table 3,
which compares docker with Orchard by the scores of models; a scripted agent has no noise of its own, so single tasks can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast_recipes.cli import main as recipes
from holdfast_recipes.swe.equivalence import Pair, table
from holdfast_server.embed import running_stack

TASKS = 100
_HEAD = """# The bare machine and sandboxes

Made by `python -m infra.recipes.equivalence`: {tasks} repair tasks (`holdfast recipes mutate`: {repos}), each played by the same
scripted agent on the bare machine and in a sandbox, with the same seeds, and graded by its tests on the side that it was played on. The
paper's Table 3 makes this comparison by the scores of three models, which differ by 1 to 2 points; a scripted agent has no noise, so
here every reward, every count of passed tests and every observation must be the same. The agent repairs the bug, commits the repair,
does nothing, edits a wrong line, deletes the line, empties the tests, makes the code hang, or hands in no patch. Seed {seed},
{concurrency} at a time, a test run may take {timeout:g} s; the load of the two cores was {before:.0f} at the start and {after:.0f} at
the end.

```
{table}
```

**What a reader may conclude.** {verdict} Where the agent
repairs a bug it replaces the first line that reads like the mutated one, which is not always that one. An agent that
measures time, asks for its host name or reads `/proc` sees a difference; this
one does not. The tests are those of pure Python libraries: nothing here is about networks, services or devices.
"""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.recipes.equivalence", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/recipes/equivalence"))
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("equivalence.md"))
    parser.add_argument("--most", type=int, default=TASKS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--test-timeout", type=float, default=60.0)
    arguments = parser.parse_args(words)
    rows = arguments.out / "tasks.jsonl"
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-equivalence-") as data, running_stack(Path(data)) as stack:
        os.environ |= {"HOLDFAST_URL": stack.url, "HOLDFAST_API_KEY": stack.key}
        if not rows.exists():
            each = ["--most", str(arguments.most), "--most-per-project", str(-(-arguments.most // 4))]
            if status := recipes(["mutate", "--out", str(arguments.out), "--seed", str(arguments.seed), *each]):
                return status
        printed = io.StringIO()
        how = ["--concurrency", str(arguments.concurrency), "--seed", str(arguments.seed), "--test-timeout", str(arguments.test_timeout)]
        with contextlib.redirect_stdout(printed):
            status = recipes(["equivalence", str(rows), "--most", str(arguments.most), *how, "--json"])
    pairs = [_pair(record) for record in json.loads(printed.getvalue())]
    (arguments.out / "pairs.json").write_text(printed.getvalue())
    repos = Counter(json.loads(line)["repo"] for line in rows.read_text().splitlines())
    arguments.page.write_text(page(pairs, repos, arguments, before, os.getloadavg()[0]))
    print(table(pairs))
    return status


def _pair(record: dict[str, Any]) -> Pair:
    fields = {name: record[name] for name in Pair.__dataclass_fields__}
    tests = {name: tuple(map(tuple, fields[name])) if fields[name] else None for name in ("bare_tests", "sandbox_tests")}
    return Pair(**fields | tests)


def page(pairs: list[Pair], repos: Counter[str], arguments: argparse.Namespace, before: float, after: float) -> str:
    """The published page."""
    differ = [pair for pair in pairs if not pair.same]
    other = sum(pair.different for pair in pairs)
    seen = sum(pair.observations for pair in pairs)
    rewards = f"On {len(pairs) - len(differ)} of {len(pairs)} tasks reward, status and counts of passed tests are the same"
    verdict = f"{rewards}; {seen - other} of {seen} observations are equal character by character."
    return _HEAD.format(
        tasks=len(pairs),
        repos=", ".join(f"{name} {count}" for name, count in sorted(repos.items())),
        seed=arguments.seed,
        concurrency=arguments.concurrency,
        timeout=arguments.test_timeout,
        before=before,
        after=after,
        table=table(pairs),
        verdict=verdict,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
