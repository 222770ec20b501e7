"""The `rawko` command, also as ``python -m rawko_state``."""

import sys


def main() -> None:
    words = sys.argv[1:]
    if words[:2] == ["hook", "run"] and 3 <= len(words) <= 4 and not words[2].startswith("-"):
        # An agent waits for this at each of its tool calls, so no command line is set up for it.
        from rawko_state.integrations.hook_event import AGENTS, run

        if words[2] in AGENTS:
            run(*words[2:])
            return
    from rawko_state.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
