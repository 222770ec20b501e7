"""One cleanup in a process of its own, to be killed anywhere in it.

python keeping_driver.py cleanup|restore|pack|unpack|redact FOLDER
"""

from __future__ import annotations

import os
import sys
import warnings

from rawko_state.backends.files import redaction, trash, writer
from rawko_state.backends.files.store import FileStore
from rawko_state.journal import archive, rewrite
from rawko_state.lifecycle import cleanup
from rawko_state.lifecycle.retention import Plan, Policy

LOADED = (trash, redaction, writer, archive, rewrite)


def main(what: str, folder: str) -> None:
    warnings.simplefilter("ignore")
    store = FileStore(folder)
    store.redactor  # noqa: B018 - loads what it needs
    tasks = sorted(store.retention_rows(), key=lambda task: task.id)
    os.access("/nonexistent-rawko-begin", os.F_OK)
    if what == "cleanup":
        cleanup.carry_out(store, Policy(max_count=1), Plan(tuple((task, "max_count") for task in tasks)))
    elif what == "restore":
        store.restore()
    elif what == "pack":
        for task in tasks:
            store.pack(task)
    elif what == "unpack":
        for task in tasks:
            with store.attach(task.id) as opened:
                opened.note("opened")
    elif what == "redact":
        for task in tasks:
            store.redact(task.id)
    os.access("/nonexistent-rawko-end", os.F_OK)


if __name__ == "__main__":
    main(*sys.argv[1:])
