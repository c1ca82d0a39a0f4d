"""``python -m session_agent.bundle``: build the bundle, print its size and contents, and create an image of it on request.

Owns the command line and the printed text. Exit status 0, or 1 with one line that states why the bundle was not built.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from holdfast_wire.errors import HoldfastError

from .build import BUDGET_BYTES, BuildError, build
from .oci import write_archive

MIB = 1024 * 1024


def main(arguments: list[str] | None = None) -> int:
    """Build the bundle; the arguments are those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m session_agent.bundle", description="Build the bundle that is injected into images.")
    parser.add_argument("--output", type=Path, default=Path("build/bundle"), help="folder of the bundle (default: build/bundle)")
    parser.add_argument("--oci", type=Path, metavar="FILE.tar", help="also write an image: an archive of an OCI layout")
    parser.add_argument("--tag", default="holdfast/bundle:dev", help="the image's name (default: holdfast/bundle:dev)")
    options = parser.parse_args(arguments)
    try:
        bundle = build(options.output)
        image = write_archive(bundle, options.oci, options.tag) if options.oci is not None else ""
    except (BuildError, HoldfastError, OSError, subprocess.CalledProcessError) as error:
        print(f"no bundle: {error}", file=sys.stderr)
        return 1
    facts = bundle.manifest
    print(
        f"{bundle.folder}: {facts['size_bytes'] / MIB:.1f} MiB of {BUDGET_BYTES / MIB:.0f}, {len(facts['files'])} files, {facts['digest']}"
    )
    print(f"Python {facts['python']}, {facts['libc']}, {facts['architecture']}, agent {facts['agent_version']}")
    if image:
        print(f"{options.oci}: image {options.tag} {image}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
