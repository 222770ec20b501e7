"""A process that folds, writes or searches, for the tests that kill it or run several at once.

python search_driver.py fold|folds|write|searches FOLDER [SEED]
"""

from __future__ import annotations

import sys

from rawko_state.backends.files.store import FileStore
from rawko_state.model.entries import Turn


def main(what: str, folder: str, seed: str = "0") -> None:
    store = FileStore(folder)
    if what == "fold":
        store.flush()
        print("folded")
    elif what == "folds":
        for _ in range(40):
            store.flush()
    elif what == "write":
        for number in range(10):
            with store.start(f"request {seed} {number}") as task:
                for turn in range(3):
                    task.add_turn(
                        Turn(number=1, agent="d", status="complete", content=f"needle s{seed}n{number}t{turn}")
                    )
                    # Mine is found at once, whatever the others are doing.
                    assert len(store.search(f"s{seed}n{number}t{turn}").hits) == 1
                task.finish("success")
    else:
        most = 0
        for _ in range(60):
            found = len(store.search("needle", turns=True).hits)
            assert found >= most, f"{found} after {most}"
            most = found


if __name__ == "__main__":
    main(*sys.argv[1:])
