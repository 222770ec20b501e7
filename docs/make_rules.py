"""Makes the table of rules in docs/keeping.md; with --check, says whether it is as it should be."""

from __future__ import annotations

import sys
from pathlib import Path

from rawko_state.redact.rules import RULES

BEGIN, END = "<!-- rules: made by docs/make_rules.py -->\n", "<!-- end of rules -->\n"


def table() -> str:
    names = [f"`{rule.name}`" for rule in RULES]
    return BEGIN + ", ".join(names) + ".\n" + END


def main() -> None:
    path = Path(__file__).parent / "keeping.md"
    text = path.read_text(encoding="utf-8")
    made = text[: text.index(BEGIN)] + table() + text[text.index(END) + len(END) :]
    if "--check" in sys.argv:
        if made != text:
            sys.exit("docs/keeping.md lists other rules than there are: run docs/make_rules.py")
        return
    path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
