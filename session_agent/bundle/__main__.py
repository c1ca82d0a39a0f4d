"""``python -m session_agent.bundle``: build the bundle, list what is in it, and make an image of it on request.

Owns the command line and what is printed. Exit status 0, or 1 with one line: why there is no bundle.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from .build import BUDGET_BYTES, BuildError, build
from .oci import write_archive, write_layout

MIB = 1024 * 1024


def main(arguments: list[str] | None = None) -> int:
    """Build; the arguments are those of the command line."""
    parser = argparse.ArgumentParser(prog="python -m session_agent.bundle", description="Build the bundle that is injected into images.")
    parser.add_argument("--output", type=Path, default=Path("build/bundle"), help="folder of the bundle (default: build/bundle)")
    parser.add_argument("--json", action="store_true", help="print the manifest without its list of files")
    parser.add_argument("--no-strip", action="store_true", help="leave debug symbols in")
    parser.add_argument(
        "--oci", type=Path, metavar="PATH", help="also write an image: an OCI layout, or an archive of one if PATH ends in .tar"
    )
    parser.add_argument("--tag", default="holdfast/bundle:dev", help="the image's name (default: holdfast/bundle:dev)")
    options = parser.parse_args(arguments)
    try:
        bundle = build(options.output, strip=not options.no_strip)
        if options.oci is not None:
            write = write_archive if options.oci.suffix == ".tar" else write_layout
            image = write(bundle.folder, options.oci, options.tag)
    except (BuildError, OSError, subprocess.CalledProcessError) as error:
        print(f"no bundle: {error}", file=sys.stderr)
        return 1
    if options.json:
        shown = {name: value for name, value in bundle.manifest.items() if name not in ("files", "modules")}
        print(json.dumps(shown | ({"image": image} if options.oci is not None else {}), indent=2))
        return 0
    facts = bundle.manifest
    print(f"{bundle.folder}: {bundle.size_bytes / MIB:.1f} MiB of {BUDGET_BYTES / MIB:.0f}, {len(facts['files'])} files, {bundle.digest}")
    print(f"Python {facts['python']}, {facts['libc']}, {facts['architecture']}, agent {facts['agent_version']}")
    if options.oci is not None:
        print(f"{options.oci}: image {options.tag} {image}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
