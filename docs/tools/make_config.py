"""Makes docs/reference/settings.md from the schema; with --check, says whether it is as it should be."""

from __future__ import annotations

import sys
from pathlib import Path

from rawko_state.config.schema import DURATION, SETTINGS, Setting, write_duration

HEAD = """# Settings

YAML files, later ones winning key by key: the system's (`/etc/xdg/rawko/config.yaml` on Linux), the user's
(`~/.config/rawko/config.yaml`), the project's (`.rawko/config.yaml`, to be shared), the user's for this project
(`.rawko/config.user.yaml`), then environment variables, then options. On macOS and Windows the first two are where `platformdirs`
says. A `config.cue` is read through the `cue` command where no YAML file stands beside it.

A project's files may come with a clone from anybody, so what is run (`runners`, `redact.patterns`) or would let secrets through
(`redact.off`) is taken from the system's and the user's alone.
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
state:
  retention:
    max_age: 30d
    max_count: 1000
    keep_failed: yes
    min_keep: 10
    compress_after: 7d
redact:
  env: [DEPLOY_TOKEN]
  patterns:
    acme-token: 'acme_[0-9a-f]{32}'
```
"""


def default(setting: Setting) -> str:
    value = setting.default
    if value in (None, {}, ()):
        return ""
    if setting.type is DURATION:
        value = write_duration(value)
    return f"`{'yes' if value is True else value}`"


def page() -> str:
    rows = [f"| `{s.key}` | {s.type.name} | {default(s)} | `{s.variable}` | {s.help} |\n" for s in SETTINGS]
    return HEAD + "".join(rows) + EXAMPLE


def main() -> None:
    path = Path(__file__).parent.parent / "reference" / "settings.md"
    if "--check" in sys.argv:
        if path.read_text(encoding="utf-8") != page():
            sys.exit("docs/reference/settings.md is not what docs/tools/make_config.py makes: run it")
        return
    path.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
