"""Search: what counts as a match, that folding changes nothing but the time, and that nothing can break it."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import warnings
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.errors import SearchTrouble
from rawko_state.search import whoosh_index
from tests.search.searching import (
    ids,
    said,
)


class TestBroken:
    """Whatever is in the folder: the answer is right, one line says so, and it is made anew."""

    def _told(self, root: Path) -> tuple[FileStore, list[str]]:
        lines: list[str] = []
        return FileStore(root, warn=lines.append), lines

    @pytest.mark.parametrize("what", ["gone", "empty", "cut", "garbage", "no toc", "zeroes", "a file", "newer"])
    def test_a_broken_folder(self, store: FileStore, what: str) -> None:
        found = [said(store, f"needle n{number}") for number in range(5)]
        store.flush()
        store.close()
        folder = store.root / ".rawko/state/search"
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if what in ("gone", "a file"):
            shutil.rmtree(folder)
        if what == "a file":
            folder.write_text("not a folder")
        for path in files if what not in ("gone", "a file") else ():
            size = path.stat().st_size
            if what == "empty":
                path.write_bytes(b"")
            elif what == "cut":
                path.write_bytes(path.read_bytes()[: size // 2])
            elif what == "garbage":
                path.write_bytes(random.Random(1).randbytes(size))
            elif what == "zeroes":
                path.write_bytes(bytes(size))
            elif what == "no toc" and path.name.endswith(".toc"):
                path.unlink()
            elif what == "newer" and path.name.endswith(".toc"):
                path.write_bytes(path.read_bytes().replace(b"rawko_state", b"rawko_later"))
        broken, lines = self._told(store.root)
        assert sorted(ids(broken, "needle")) == sorted(found)
        if what != "a file":
            assert len(lines) == 1
            assert "answering from the task files" in lines[0]
            assert "\n" not in lines[0]
            broken.flush()
            assert broken.unflushed() == 0
        assert sorted(ids(broken, "needle")) == sorted(found)
        assert len(lines) == (0 if what == "a file" else 1)
        broken.close()

    def test_one_flipped_byte_anywhere(self, store: FileStore) -> None:
        found = sorted(said(store, f"needle n{number} getUserById") for number in range(5))
        store.flush()
        store.close()
        folder = store.root / ".rawko/state/search"
        kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stat().st_size}
        chance = random.Random(7)
        for _ in range(60):
            path = chance.choice(sorted(kept))
            at = chance.randrange(len(kept[path]))
            data = bytearray(kept[path])
            data[at] ^= 1 << chance.randrange(8)
            path.write_bytes(data)
            broken, lines = self._told(store.root)
            answer = sorted(ids(broken, "needle"))
            # A flipped bit inside a packed list can hide a document; it can neither crash nor invent one.
            assert set(answer) <= set(found)
            broken.close()
            if lines:  # it has been given up, and a new one must be made
                broken, _ = self._told(store.root)
                broken.flush()
                assert sorted(ids(broken, "needle")) == found
                broken.close()
                kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stat().st_size}
            else:
                path.write_bytes(kept[path])

    def test_a_folder_that_others_can_write_to_is_not_read(self, store: FileStore) -> None:
        found = said(store, "needle")
        store.flush()
        os.chmod(store.root / ".rawko/state/search", 0o777)
        assert ids(store, "needle") == [found]
        assert store.flush() == 0

    def test_a_pickle_that_came_with_the_repository_is_not_loaded(self, store: FileStore, tmp_path: Path) -> None:
        found = said(store, "needle")
        store.flush()
        store.close()
        evidence = tmp_path / "loaded"

        class Bomb:
            def __reduce__(self) -> tuple[object, ...]:
                return (os.mkdir, (str(evidence),))

        folder = store.root / ".rawko/state/search"
        bomb = pickle.dumps(Bomb())
        for path in list(folder.iterdir()):
            if path.is_file():
                path.write_bytes(path.read_bytes() + bomb)
        # As if all of .rawko had been checked out by somebody else: another user's secret.
        (Path(os.environ["XDG_STATE_HOME"]) / "rawko" / "secret").unlink()
        for name in ("MAIN", "x"):
            (folder / f"_{name}_1.toc").write_bytes(bomb)
        broken, _ = self._told(store.root)
        assert ids(broken, "needle") == [found]
        broken.flush()
        assert ids(broken, "needle") == [found]
        broken.close()
        assert not evidence.exists()

    def test_no_secret_no_index(self, store: FileStore) -> None:
        found = said(store, "needle")
        home = Path(os.environ["XDG_STATE_HOME"]) / "rawko"
        home.mkdir(exist_ok=True)
        (home / "secret").write_bytes(b"x" * 32)
        os.chmod(home / "secret", 0o644)
        assert store.flush() == 0
        assert ids(store, "needle") == [found]

    def test_without_an_index_db(self, store: FileStore) -> None:
        found = said(store, "needle")
        store.flush()
        store.close()
        for path in (store.root / ".rawko/state").glob("index.db*"):
            path.unlink()
        again = FileStore(store.root)
        assert ids(again, "needle") == [found]
        again.flush()
        assert ids(again, "needle") == [found]
        again.close()

    def test_an_index_of_another_version_is_built_anew_without_a_word(self, store: FileStore) -> None:
        first = said(store, "needle")
        store.flush()
        index = store.sync.index()
        with index.transaction():
            index.set_meta("search", str(index.meta("search")).rpartition(" ")[0])  # as before it named its version
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ids(store, "needle") == [first]
            assert store.unflushed() > 0
            store.flush()
            assert store.unflushed() == 0
            assert ids(store, "needle") == [first]

    def test_reindex_rebuilds_it_and_leaves_nothing_behind(self, store: FileStore) -> None:
        found = said(store, "needle")
        store.flush()
        folder = store.root / ".rawko/state/search"
        before = {path.name for path in folder.iterdir()}
        store.reindex()
        assert store.unflushed() == 0
        assert ids(store, "needle") == [found]
        said(store, "another")
        store.flush()
        names = {path.name.split("_")[1 if path.name.startswith("_") else 0] for path in folder.iterdir()}
        assert len(names) == 1, names
        assert before.isdisjoint(path.name for path in folder.iterdir())

    def test_a_full_disk_while_folding(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        found = said(store, "needle")
        store.flush()
        more = said(store, "needle")

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(whoosh_index.FileStorage, "create_file", full)
            with pytest.raises(SearchTrouble, match="No space left"):
                store.flush()
        assert sorted(ids(store, "needle")) == sorted([found, more])
        store.flush()
        assert store.unflushed() == 0
