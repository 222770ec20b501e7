"""Runs the benchmarks at small sizes and writes what they say to one page, with the machine and the versions.

    python bench/all.py [--only growth,append] [--output docs/reference/benchmarks.md]

The figures are ratios and CPU times in one run on whatever machine this is: compare them with their floors, not with another run.
Benchmarks that need PostgreSQL, a browser or other programs are not part of it; run those by themselves.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SMALL: Final = {
    "growth": ["--sizes", "100,300,1000", "--rounds", "5"],
    "append": ["--rounds", "1000", "--megabytes", "10"],
    "history": ["--sizes", "100,300", "--no-huge"],
    "search": ["2000", "--times", "5"],
    "import": ["--sessions", "100"],
}
PACKAGES: Final = ("click", "peewee", "platformdirs", "whoosh3", "pyyaml")


def machine() -> str:
    """The machine and the versions, as rows of a table."""
    processor = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor() or "unknown",
    )
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    rows = {
        "machine": f"{processor}, {os.cpu_count()} cores, load {load} at the start",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "rawko": version("rawko-state"),
        **{name: version(name) for name in PACKAGES},
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def said(name: str) -> str:
    """What a benchmark prints: a table as it is, anything else as it would look in a terminal."""
    command = [sys.executable, str(HERE / f"{name}.py"), *SMALL[name]]
    print(f"{name} …", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.rstrip().splitlines()
    plain = "\n".join(line for line in lines if not line.startswith("|"))
    rows = "\n".join(line for line in lines if line.startswith("|"))
    call = f"python bench/{name}.py {' '.join(SMALL[name])}"
    return f"## {name}\n`{call}`\n\n" + (f"{rows}\n\n" if rows else "") + f"```text\n{plain}\n```\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", help="some of them, with commas between")
    options.add_argument("--output", type=Path, help="the page to write (default: standard output)")
    chosen = options.parse_args()
    names = chosen.only.split(",") if chosen.only else list(SMALL)
    unknown = [name for name in names if name not in SMALL]
    if unknown:
        options.error(f"Unknown benchmark: {unknown[0]}. Known: {', '.join(SMALL)}.")
    about = "# Benchmarks\n\nWritten by `python bench/all.py`: small sizes, one run, each figure beside its floor.\n"
    page = "\n".join([about, machine(), "", *map(said, names)])
    if chosen.output is None:
        print(page)
    else:
        chosen.output.write_text(page)


if __name__ == "__main__":
    main()
