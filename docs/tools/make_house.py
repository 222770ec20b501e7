"""Draws docs/why/house.svg: the parts of rawko in their layers, and who imports whom, read from the source.

python docs/tools/make_house.py            writes it
python docs/tools/make_house.py --check    fails if it is not up to date
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rawko_state"
TARGET = ROOT / "docs" / "why" / "house.svg"
SPLIT = "backends"
"""Drawn as the rooms that it has."""
WIDTH, BOX, ROW, GAP = 920, 34, 78, 14


def part_of(module: str) -> str | None:
    """rawko_state.backends.files.store -> backends/files; rawko_state.errors -> errors"""
    parts = module.split(".")[1:]
    if not parts:
        return None
    if parts[0] == SPLIT:
        folder = PACKAGE / SPLIT / parts[1] if len(parts) > 1 else None
        return f"{SPLIT}/{parts[1]}" if folder is not None and folder.is_dir() else f"{SPLIT} (shared)"
    return parts[0]


def imports() -> Counter[tuple[str, str]]:
    """How many modules of one part import another."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        mine = part_of(module)
        seen = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rawko_state."):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                for name in names:
                    whole = ROOT.joinpath(*name.split("."))
                    is_module = whole.with_suffix(".py").exists() or whole.is_dir()
                    seen.add(part_of(name if is_module else node.module or ""))
        for other in seen - {mine, None}:
            if mine is not None and other is not None:
                found[mine, other] += 1
    return found


def layers() -> list[list[str]]:
    """As import-linter checks them, the top first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows: list[list[str]] = []
    for row in config["tool"]["importlinter"]["contracts"][0]["layers"]:
        parts = [part.strip().removeprefix("rawko_state.") for part in row.split("|")]
        if parts == [SPLIT]:
            rooms = sorted(path.name for path in (PACKAGE / SPLIT).iterdir() if (path / "__init__.py").exists())
            rows += [[f"{SPLIT}/{room}" for room in rooms], [f"{SPLIT} (shared)"]]
        else:
            rows.append(parts)
    return rows


def _width(count: int) -> float:
    """In three steps, so that the picture changes only when the house does."""
    return 0.8 if count < 5 else 1.6 if count < 15 else 3.0


def draw() -> str:
    rows, edges = layers(), imports()
    at: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows):
        width = min(190.0, (WIDTH - GAP * (len(row) + 1)) / len(row))
        left = (WIDTH - len(row) * width - (len(row) - 1) * GAP) / 2
        for index, part in enumerate(row):
            at[part] = (left + index * (width + GAP), 20 + number * ROW, width)
    height = 20 + len(rows) * ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="14">',
        "<title>The parts of rawko, and who imports whom</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for (one, other), count in sorted(edges.items()):
        if one in at and other in at and at[one][1] < at[other][1]:
            (x, y, w), (u, v, z) = at[one], at[other]
            lines.append(
                f'<line x1="{x + w / 2:.0f}" y1="{y + BOX}" x2="{u + z / 2:.0f}" y2="{v}" stroke="#8a94a6"'
                f' stroke-width="{_width(count)}" stroke-opacity="0.55"><title>{one} imports {other}</title></line>'
            )
    for part, (x, y, w) in at.items():
        lines.append(
            f'<rect x="{x:.0f}" y="{y}" width="{w:.0f}" height="{BOX}" rx="5" fill="#f4f6fa" stroke="#3d4a61"/>'
            f'<text x="{x + w / 2:.0f}" y="{y + 22}" text-anchor="middle" fill="#1b2433">{part}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    wanted = draw()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != wanted:
            sys.exit("docs/why/house.svg is not up to date: python docs/tools/make_house.py")
    else:
        TARGET.write_text(wanted, encoding="utf-8")
