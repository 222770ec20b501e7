"""Takes each sync, lock and checksum out of the code in turn, and wants the crash tests to notice.

    python tests/mutants.py            all of them
    python tests/mutants.py sync       those whose name starts like that
    python tests/mutants.py --some 3   so many, chosen by the commit: over time each has its turn

Each mutant is a copy of the package with one change, put before the real one on the path. A mutant that survives is a promise
that no test keeps.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

# name, file, what is replaced, by what, the tests that must notice
MUTANTS = [
    ("sync-data", "journal/disk.py", "        _data_sync(descriptor)\n", "        pass\n", "TestPowerCuts or TestFailingSystemCalls"),
    ("sync-folder", "journal/disk.py", "    try:\n        os.fsync(descriptor)\n    except", "    try:\n        pass\n    except", "TestPowerCuts or TestFailingSystemCalls"),
    ("sync-failure-ignored", "journal/disk.py", "        _data_sync(descriptor)\n    except", "        with contextlib.suppress(OSError):\n            _data_sync(descriptor)\n    except", "failed_sync or Unknown"),
    ("sync-new-file", "journal/journal.py", "        disk.sync_folder(self.layout.tasks, seal)\n", "", "TestPowerCuts"),
    ("sync-blob-folder", "journal/blobs.py", "    disk.sync_folder(layout.blobs)\n    return blob", "    return blob", "TestBlobs"),
    ("sync-batch", "journal/disk.py", "            if _sync_of_all(files[0][0]):\n                return\n", "            return\n", "TestPowerCutsOfBatches"),
    ("sync-batch-each", "journal/disk.py", "    for descriptor, path in files:\n        sync(descriptor, path, \"\")\n", "", "TestLostSyncs"),
    ("sync-batch-names", "journal/batch.py", "            disk.sync_folder(self._layout.tasks)\n", "", "TestPowerCutsOfBatches"),
    ("sync-batch-failure-forgotten", "journal/batch.py", "            self._lost = error\n", "", "TestLostSyncs"),
    ("lock-append", "journal/locks.py", "            if not _try_lock(self._descriptor):\n", "            if False:\n", "TestManyWriters"),
    ("lock-create", "journal/journal.py", "            with append_lock(descriptor, gate):\n                if taken(name.id):\n                    return None", "            if True:", "TestIds"),
    ("lock-lease", "journal/locks.py", "            if _locked(descriptor, path):", "            if True:", "TestLease"),
    ("seal-not-checked", "format/scan.py", "        if seal in digests[:2]:", "        if True:", "TestTruncation or TestDamage or flipped"),
    ("seal-not-chained", "format/seal.py", "    digest = hashlib.sha256(previous.encode())\n    at", "    digest = hashlib.sha256(b'')\n    at", "RoundTrip or TestTruncation"),
    ("torn-tail-glued", "journal/chain.py", "        if self._sealed and self.torn:", "        if False:", "TestTruncation"),
    ("chain-not-compared", "journal/chain.py", "        if size != self._size:\n", "        if False:\n", "TestManyWriters"),
    ("replaced-file-not-noticed", "journal/chain.py", "        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):\n            raise", "        if False:\n            raise", "TestChainMoved"),
    ("draft-thrown-away", "tasks/task.py", "                self._append_clean(_numbered([self._cleaned_turn(turn)]))\n        except InvalidValue", "                pass\n        except InvalidValue", "TestKilledAtEverySystemCall or TestDrafts"),
    ("draft-doubled", "tasks/task.py", " and not self._has_ended(draft)", "", "TestDrafts"),
    ("escape-left-out", "format/text.py", "    return _LINE_TO_ESCAPE.sub(r\"\\\\\", text) if", "    return text if", "RoundTrip"),
    ("short-write-ignored", "journal/disk.py", "            rest, offset = rest[written:], offset + written", "            return", "TestShortWrites or TestFailingSystemCalls"),
    ("blob-not-checked", "journal/blobs.py", "    return offset == blob.size and digest.hexdigest() == blob.sha256", "    return True", "TestBlobs"),
    ("trash-change-not-noticed", "journal/trash.py", "            if (mine.st_size, mine.st_mtime_ns) != leaving.stat or ", "            if ", "TestTrash"),
    ("trash-restored-taken-again", "journal/trash.py", "(each.rule == BY_HAND or each.name.id not in back) and ", "", "TestOddOnes"),
    ("trash-blobs-of-the-unread", "backends/files/trash.py", "        if blobs and sync.knows_all():", "        if blobs:", "TestOddOnes"),
    ("pack-leftover-kept", "journal/archive.py", "    if is_leftover(layout, name):", "    if False:", "TestOddOnes"),
    ("pack-not-checked", "journal/source.py", " or zlib.crc32(text) != crc:", ":", "damaged_one"),
    ("redact-nothing", "tasks/task.py", "            return self.redactor.entry(entry)\n", "            return entry\n", "TestNothingReachesTheDisk"),
    ("redact-no-stream", "tasks/live_turn.py", "self._keep_piece(\"text\", self._said.feed(text))", "self._keep_piece(\"text\", text)", "TestNothingReachesTheDisk"),
    ("import-place-apart", "exchange/turns.py", "            yield [*record, self._how_far(standing=self.facts.standing())]\n", "            yield record\n", "TestOddOnes"),
    ("import-mark-not-compared", "exchange/importing.py", "        if not session.is_marked(start, data.get(\"mark\")):", "        if False:", "TestOddOnes"),
    ("server-key-not-kept", "server/operations.py", "            self.state.with_record(self.task, record.seal, key, audit)\n", "            self.state.with_record(self.task, record.seal, None, audit)\n", "TestOnce"),
    ("server-audit-later", "server/app.py", "            self.auditor.add(call.audit._replace(task=call.task), key)\n", "            self.auditor.note(call.audit._replace(task=call.task))\n", "TestAcknowledged"),
    ("server-audit-apart", "server/operations.py", "            self.state.with_record(self.task, record.seal, key, audit)\n", "            self.state.with_record(self.task, record.seal, key, None)\n", "TestAcknowledged"),
    ("pg-quick-without-condition", "backends/postgres/writer.py", "new, after=(size, seal))", "new)", "test_an_append_after_somebody_else"),
    ("server-feed-goes-on", "server/feeds.py", "        self._events.clear()\n        self._numbers.clear()\n", "        self._first -= len(self._events)\n", "TestFeeds"),
    ("server-origin-not-looked-at", "server/guard.py", "            if not same or parts.scheme not in", "            if False and parts.scheme not in", "TestGuard"),
    ("server-host-not-looked-at", "server/guard.py", "        if host not in self._hosts:", "        if False:", "TestGuard"),
    ("server-role-not-looked-at", "server/guard.py", "        if not who.may(role):", "        if False:", "TestGuard"),
    ("server-workspace-by-header", "server/guard.py", "        if wanted is not None and wanted != who.workspace:", "        if wanted is not None:\n            return wanted\n        if False:", "TestGuard"),
    ("pg-row-not-locked", "backends/postgres/writer.py", "row = self._tasks.rows.row(self.id, lock=True)\n                if row is None:\n                    raise ChainMoved", "row = self._tasks.rows.row(self.id)\n                if row is None:\n                    raise ChainMoved", "TestPostgres and many_writers"),
    ("pg-draft-not-fenced", "backends/postgres/writer.py", "self._tasks.add_to_draft(self._id, data, self._key):", "self._tasks.add_to_draft(self._id, data):", "TestOddClients"),
    ("remote-no-condition", "backends/remote/writer.py", ", \"If-Match\": f'\"{expect or self._position.seal}\"'", "", "TestRemoteOverLocal"),
]  # fmt: skip


def run(name: str, file: str, old: str, new: str, tests: str) -> bool:
    """Whether the tests notice."""
    with tempfile.TemporaryDirectory(prefix="rawko-mutant-") as folder:
        for part in ("rawko_state", "tests", "fixtures", "docs", "pyproject.toml"):
            source = ROOT / part
            target = Path(folder) / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        path = Path(folder) / "rawko_state" / file
        text = path.read_text()
        path.write_text(text.replace(old, new))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-n",
                "2",
                "-k",
                tests,
                "-p",
                "no:cacheprovider",
            ],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder, "RAWKO_HYPOTHESIS": "mutants"},
            capture_output=True,
            text=True,
        )
    last = done.stdout.strip().splitlines()[-1]
    caught = re.search(r"\b[0-9]+ failed", last) is not None
    print(f"{name}: {'caught' if caught else 'SURVIVED: ' + last}", flush=True)
    return caught


def chosen_by_commit(count: int) -> list[tuple[str, str, str, str, str]]:
    """Other ones with each commit, the same ones for the same commit."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return random.Random(done.stdout.strip()).sample(MUTANTS, count)


def main(words: list[str]) -> int:
    if words[:1] == ["--some"]:
        chosen = chosen_by_commit(int(words[1]))
    else:
        chosen = [mutant for mutant in MUTANTS if not words or mutant[0].startswith(tuple(words))]
    survivors = [mutant[0] for mutant in chosen if not run(*mutant)]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
