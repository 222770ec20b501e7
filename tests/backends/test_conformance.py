"""Every backend passes the suite that others may test theirs with; and what is PostgreSQL's own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawko_state.backends.files.store import FileStore
from rawko_state.backends.memory.host import MemoryHost
from rawko_state.backends.memory.store import MemoryStore
from rawko_state.backends.postgres.connection import Postgres, _is_usable
from rawko_state.backends.postgres.names import check_workspace
from rawko_state.backends.postgres.rows import MIGRATIONS
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.backends.remote.store import RemoteStore
from rawko_state.errors import ChainMoved, IndexNewer, InvalidValue, StorageError
from rawko_state.model.entries import Turn
from rawko_state.testing import HostedConformance, StoreConformance
from tests.support.machine import wait_for
from tests.support.serving import Served, served


class TestLocal(StoreConformance, HostedConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FileStore:
        return FileStore(tmp_path)

    @pytest.fixture
    def another(self, store: FileStore) -> FileStore:
        return FileStore(store.root)


class TestMemory(StoreConformance, HostedConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> MemoryStore:
        return MemoryStore(root=tmp_path)

    @pytest.fixture
    def another(self, store: MemoryStore) -> MemoryStore:
        return store  # there is no other process


class TestRemoteOverMemory(StoreConformance):
    """The server knows nothing but the contract."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Served]:
        with served(tmp_path, host=MemoryHost(tmp_path, lambda message: None)) as running:
            yield running

    @pytest.fixture
    def store(self, server: Served, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(server.url, root=tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def another(self, server: Served, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(server.url, root=tmp_path)
        yield store
        store.close()


@pytest.fixture
def workspace() -> str:
    return f"w{uuid.uuid4().hex[:12]}"


@pytest.fixture
def pg(postgres: str, workspace: str, tmp_path: Path) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres, workspace, root=tmp_path)
    yield store
    store.close()


class TestPostgres(StoreConformance, HostedConformance):
    @pytest.fixture
    def store(self, pg: PostgresStore) -> PostgresStore:
        return pg

    @pytest.fixture
    def another(self, store: PostgresStore, postgres: str) -> Iterator[PostgresStore]:
        other = PostgresStore(postgres, store.workspace, root=store.root)
        yield other
        other.close()


class TestRemoteOverLocal(StoreConformance):
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[Served]:
        (tmp_path / "server").mkdir()
        with served(tmp_path / "server") as running:
            yield running

    @pytest.fixture
    def store(self, server: Served, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(server.url, root=tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def another(self, server: Served, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(server.url, root=tmp_path)
        yield store
        store.close()


@pytest.mark.every
class TestRemoteOverPostgres(StoreConformance):
    """Remote over files and PostgreSQL itself are each tested whole; the two together with --every, and in CI."""

    @pytest.fixture
    def server(self, postgres: str, workspace: str, tmp_path: Path) -> Iterator[Served]:
        with served(tmp_path, postgres) as running:
            running.server.workspaces.host.create_workspace(workspace)
            yield running

    @pytest.fixture
    def store(self, server: Served, workspace: str, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(server.url, workspace=workspace, root=tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def another(self, server: Served, workspace: str, tmp_path: Path) -> Iterator[RemoteStore]:
        store = RemoteStore(server.url, workspace=workspace, root=tmp_path)
        yield store
        store.close()


class TestTheChainInTheDatabase:
    def test_the_database_itself_refuses_a_second_child(self, pg: PostgresStore) -> None:
        """Whatever code comes past the lock: the constraint holds."""
        task = pg.start("x", detached=True)
        seal = task.seal
        task.add_turn(Turn(number=1, agent="a"))
        statement = f"INSERT INTO {pg.tasks.rows.at('task_records')} VALUES (%s, 999999, 1, 'sealed', 'x', %s)"
        with pytest.raises(Exception, match="one_child_a_record"):
            pg.postgres.connection.execute(statement, (task.id, seal))

    def test_an_append_is_all_or_nothing(self, pg: PostgresStore) -> None:
        task = pg.start("x", detached=True)
        before = _bytes(pg, task.id)

        def fails(seal: str) -> None:
            raise InvalidValue("no")

        task.before_write = fails
        with pytest.raises(InvalidValue):
            task.add_turn(Turn(number=1, agent="a", content="y"))
        assert _bytes(pg, task.id) == before
        task.before_write = None
        task.add_turn(Turn(number=1, agent="a", content="y"))
        assert pg.summary(task.id).turns == 1

    def test_rows_are_those_of_a_local_index(self, pg: PostgresStore, tmp_path: Path) -> None:
        """One projection: the same bytes give the same rows."""
        with pg.start("x", labels={"a": "b"}) as task:
            task.decide(selected="dev")
            with task.turn("dev") as turn:
                turn.tool("filesystem.write", "a.py", "ok", output="z" * 20_000)
            task.finish("success", "s", files=["b.py"])
        (tmp_path / "copy").mkdir()
        local = FileStore(tmp_path / "copy")
        local.add_file(pg.find(task.id).filename, _bytes(pg, task.id), list(pg.blobs_of(task.id).values()))
        index = local.sync.fresh()
        for name, model in (
            ("task_agents", index.tables.agents),
            ("task_files", index.tables.files),
            ("task_records", index.tables.records),
            ("task_runs", index.tables.runs),
            ("task_events", index.tables.events),
            ("task_blobs", index.tables.blobs),
        ):
            columns = ", ".join(f'"{column}"' for column in model._meta.columns)
            theirs = pg.postgres.connection.execute(f"SELECT {columns} FROM {pg.tasks.rows.at(name)}").fetchall()
            ours = index.connection.execute(f"SELECT {columns} FROM {name}").fetchall()
            assert sorted(map(tuple, theirs), key=repr) == sorted(ours, key=repr), name
        mine, other = index.row(task.id), pg.tasks.rows.row(task.id)
        assert mine is not None
        assert other is not None
        apart = {"file_mtime_ns", "folded", "fold_base"}
        assert {k: v for k, v in mine.items() if k not in apart} == {k: v for k, v in other.items() if k not in apart}

    def test_state_and_payload_can_be_asked_as_json(self, pg: PostgresStore) -> None:
        task = pg.start("x", detached=True)
        task.add_turn(
            Turn(number=1, agent="a", state={"phase": "plan", "nul": "\x00"}, payload='{"role": "user"}\nnot json')
        )
        query = f"SELECT state->>'phase', payload->0->>'role', payload->>1 FROM {pg.tasks.rows.at('task_states')}"
        assert pg.postgres.connection.execute(query).fetchall() == [("plan", "user", "not json")]

    def test_a_lease_that_ran_out_is_taken_over(self, pg: PostgresStore) -> None:
        task = pg.start("x", detached=True)
        token = pg.take_lease(task.id, seconds=0.2)
        assert pg.reconcile() == []
        threading.Event().wait(0.3)
        other = pg.take_lease(task.id)
        assert other != token
        pg.release_lease(task.id, token)  # not ours any more: nothing happens
        assert task.id in pg.alive()

    def test_what_a_dead_writer_left_is_seen_to(self, pg: PostgresStore) -> None:
        task = pg.start("x")
        turn = task.turn("dev")
        turn.say("half")
        # As if the process had died: nobody keeps the lease.
        pg.postgres.connection.execute(f"UPDATE {pg.tasks.rows.at('leases')} SET expires = now() - interval '1 s'")
        assert pg.status(task.id) == "interrupted"
        assert pg.reconcile() == [task.id]
        assert pg.turn(task.id, 1).content == "half"
        task._writer.release_lease()

    def test_a_rewritten_task_is_noticed_by_whoever_follows(self, pg: PostgresStore) -> None:
        secret = "ghp_" + "a1B2" * 9
        data = f"=== TASK abc123 ===\nStatus: completed\n\n=== REQUEST ===\nUser: use {secret}\n".encode()
        pg.add_file("2024-01-15T10-30-00-abc123.task", data)
        reader = pg.event_reader("abc123")
        assert list(reader.poll())
        pg.redact("abc123")
        assert next(iter(reader.poll())).kind in ("gap", "status", "request", "note")


class TestConnections:
    def test_a_lost_connection_is_made_again(self, pg: PostgresStore) -> None:
        task = pg.start("x", detached=True)
        """Before it is used: nobody sees an error after the database was restarted."""
        mine = pg.postgres.connection
        other = Postgres(pg.postgres.url)
        other.connection.execute("SELECT pg_terminate_backend(%s)", (mine.info.backend_pid,))
        other.close()
        wait_for(lambda: not _is_usable(mine))
        task.add_turn(Turn(number=1, agent="a"))
        assert pg.summary(task.id).turns == 1

    def test_a_follower_is_not_told_that_a_task_is_gone_when_the_database_is(
        self, pg: PostgresStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task = pg.start("x", detached=True)
        reader = pg.event_reader(task.id)
        seen = [event.kind for event in reader.poll()]
        task.add_turn(Turn(number=1, agent="a", content="y"))
        with monkeypatch.context() as patch:
            # The connection is lost while it is used.
            patch.setattr("rawko_state.backends.postgres.connection._is_usable", lambda connection: True)
            pg.postgres.connection.close()
            with pytest.raises(StorageError):
                list(reader.poll())
        assert [event.kind for event in reader.poll()] == ["turn"]
        assert "gap" not in seen

    def test_a_database_that_is_away(self) -> None:
        with pytest.raises(StorageError, match="reach"):
            PostgresStore("postgresql://postgres@127.0.0.1:1/none")
        with pytest.raises(InvalidValue):
            PostgresStore("mysql://x")

    def test_servers_that_start_at_once_migrate_once(self, postgres: str, workspace: str, tmp_path: Path) -> None:
        trouble: list[BaseException] = []

        def begin() -> None:
            try:
                PostgresStore(postgres, workspace, root=tmp_path).close()
            except BaseException as error:
                trouble.append(error)

        threads = [threading.Thread(target=begin) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trouble == []
        store = PostgresStore(postgres, workspace, root=tmp_path)
        versions = store.postgres.connection.execute(f"SELECT n FROM {store.tasks.rows.at('migrations')}").fetchall()
        assert versions == [(number,) for number in range(1, len(MIGRATIONS) + 1)]
        store.postgres.connection.execute(f"INSERT INTO {store.tasks.rows.at('migrations')} VALUES (999, 'later')")
        with pytest.raises(IndexNewer):
            PostgresStore(postgres, workspace, root=tmp_path)
        store.close()

    def test_workspaces_do_not_see_each_other(self, pg: PostgresStore, postgres: str, tmp_path: Path) -> None:
        task = pg.start("a secret plan", detached=True)
        other = PostgresStore(postgres, "other", root=tmp_path)
        assert task.id not in {each.id for each in other.trash()}
        assert other.search("secret plan").hits == ()
        with pytest.raises(KeyError):
            other.summary(task.id)
        other.close()

    @pytest.mark.parametrize("name", ["", "A", "a b", 'a"; DROP', "-a", "a" * 41, "é"])
    def test_names_of_workspaces(self, name: str) -> None:
        with pytest.raises(InvalidValue):
            check_workspace(name)


def test_a_moved_tail_is_told_by_its_seal(pg: PostgresStore) -> None:
    task = pg.start("x", detached=True)
    with pytest.raises(ChainMoved, match=task.seal):
        task.add_turn(Turn(number=1, agent="a"), expect="0" * 16)


def _bytes(store: PostgresStore, task_id: str) -> bytes:
    with store.reader(task_id) as reader:
        return reader.fetch(0, reader.size)
