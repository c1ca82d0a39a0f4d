"""``holdfast recipes export``: a data set as the rows that a trainer reads, with loss on the credited turns.

Owns arguments, files and printing; rows are ``pipeline.export``'s.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.curate import tokenizer
from holdfast_recipes.pipeline.errors import DataError, SettingError
from holdfast_recipes.pipeline.export import ENGINES, Counts, exported


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="a data set's folder, or a file of runs")
    parser.add_argument("--engine", required=True, choices=sorted(ENGINES))
    parser.add_argument("--tokenizer", default="bytes", metavar="HOW", help="bytes, or the student's tokenizer.json (%(default)s)")
    parser.add_argument("--context", type=int, metavar="N", help="tokens of a row; longer runs lose their oldest messages")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help=".jsonl, or .parquet (needs pyarrow)")


def export(arguments: argparse.Namespace) -> int:
    if arguments.context is not None and arguments.context < 1:
        raise SettingError("--context must be at least 1")
    counts = Counts()
    encode = tokenizer(arguments.tokenizer).encode
    rows = exported(files.trajectories(arguments.data), arguments.engine, encode, counts, limit=arguments.context)
    if arguments.out.suffix == ".parquet":
        parquet = files.pyarrow_parquet()
        import pyarrow

        found = list(rows)
        if found:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pyarrow.Table.from_pylist(found), arguments.out)
    else:
        files.write_lines(arguments.out, rows)
    left_out = ", ".join(f"{name} {count}" for name, count in counts.left_out.items())
    if not counts.rows:
        raise DataError(
            f"{arguments.data}: no run gives a row ({left_out or 'it has none'})", hint="curate gives unresolved runs their turns"
        )
    record = {"rows": counts.rows, "tokens": counts.tokens, "tokens_with_loss": counts.targets, "left_out": counts.left_out}
    if arguments.json:
        print(json.dumps(record))
        return 0
    print(f"{counts.rows} rows with loss on {counts.targets} of {counts.tokens} tokens are in {arguments.out}")
    if left_out:
        print(f"export: left out: {left_out}", file=sys.stderr)
    return 0
