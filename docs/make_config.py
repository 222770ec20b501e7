"""Makes docs/config.md from the schema; with --check, says whether it is as it should be."""

from __future__ import annotations

import sys
from pathlib import Path

from rawko_state.config.schema import SETTINGS

HEAD = """# Settings

YAML files, later ones winning key by key: the system's (`/etc/xdg/rawko/config.yaml` on Linux), the user's
(`~/.config/rawko/config.yaml`), the project's (`.rawko/config.yaml`, to be shared), the user's for this project
(`.rawko/config.user.yaml`), then environment variables, then options. On macOS and Windows the first two are where `platformdirs`
says. A `config.cue` is read through the `cue` command where no YAML file stands beside it.

A project's files may come with a clone from anybody, so commands (`runners`) are taken from the system's and the user's alone.
What is wrong in a file (an unknown key, a wrong type, broken YAML) is said with its line and left out.

`rawko config list --origin` shows each value and where it comes from; `get`, `set`, `unset`, `edit`, `check`.

| key | type | default | variable | |
|---|---|---|---|---|
"""
EXAMPLE = """
```yaml
runners:
  developer: my-agent --auto
resume:
  budget: 100000
```
"""


def page() -> str:
    rows = [
        f"| `{s.key}` | {s.type.name} | {'' if s.default in (None, {}) else f'`{s.default}`'} | `{s.variable}` | {s.help} |\n"
        for s in SETTINGS
    ]
    return HEAD + "".join(rows) + EXAMPLE


def main() -> None:
    path = Path(__file__).parent / "config.md"
    if "--check" in sys.argv:
        if path.read_text(encoding="utf-8") != page():
            sys.exit("docs/config.md is not what docs/make_config.py makes: run it")
        return
    path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
