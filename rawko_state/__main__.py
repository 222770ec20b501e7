"""``python -m rawko_state``: the same as ``rawko``."""

from rawko_state.cli import main

main()
