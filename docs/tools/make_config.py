"""Makes docs/reference/settings.md from the schema; with --check, says whether it is as it should be."""

from __future__ import annotations

import sys
from pathlib import Path

from rawko_state.config.schema import DURATION, SETTINGS, Setting, write_duration

HEAD = """# Settings

Settings come from these places. If a setting is in several, the last one wins.

1. the system: `/etc/xdg/rawko/config.yaml`
2. you: `~/.config/rawko/config.yaml`
3. the project, shared with others: `.rawko/config.yaml`
4. you, for this project: `.rawko/config.user.yaml`
5. environment variables
6. options of a command

The first two paths are those of Linux; on macOS and Windows, the package `platformdirs` decides. If there is a `config.cue` and
no YAML file beside it, the `cue` command reads it.

A project's files may come with a clone from anyone. So settings that run something (`runners`,
`redact.patterns`) or would let secrets through (`redact.off`) count only in the system's settings and in your own.
A mistake in a file (an unknown key, a wrong type, broken YAML) is reported with its line and ignored.

`rawko config list --origin` shows each value and where it comes from. `rawko config set`, `unset` and `edit` change settings, and
`check` finds mistakes.

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
