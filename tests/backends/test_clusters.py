"""PostgreSQL as teams run it: behind a pooler, with a standby, on a distributed engine."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rawko_state.backends.postgres.connection import Postgres, statements_of
from rawko_state.backends.postgres.host import PG_MIGRATIONS
from rawko_state.backends.postgres.rows import MIGRATIONS
from rawko_state.backends.postgres.store import PostgresStore
from rawko_state.errors import InvalidValue, StorageError
from rawko_state.model.entries import ToolCall, Turn
from rawko_state.testing import HostedConformance, StoreConformance
from tests.support.cluster import Pgbouncer
from tests.support.machine import wait_for
from tests.support.processes import MARK


@pytest.fixture(scope="module")
def pooled(postgres: str) -> Iterator[str]:
    running = Pgbouncer(postgres, os.environ[MARK])
    yield running.uri
    running.stop()


@pytest.fixture
def workspace() -> str:
    return f"w{uuid.uuid4().hex[:12]}"


@pytest.mark.every
class TestPgbouncer(StoreConformance, HostedConformance):
    """The whole suite through pgbouncer in transaction mode."""

    @pytest.fixture
    def store(self, pooled: str, workspace: str, tmp_path: Path) -> Iterator[PostgresStore]:
        store = PostgresStore(pooled, workspace, root=tmp_path)
        yield store
        store.close()

    @pytest.fixture
    def another(self, store: PostgresStore, pooled: str) -> Iterator[PostgresStore]:
        other = PostgresStore(pooled, store.workspace, root=store.root)
        yield other
        other.close()


class TestPooler:
    def test_many_threads_share_its_connections(self, pooled: str, workspace: str, tmp_path: Path) -> None:
        """Statements that were prepared on one connection are unknown on the next."""
        store = PostgresStore(pooled, workspace, root=tmp_path)
        assert store.postgres.connection.prepare_threshold is None
        trouble: list[BaseException] = []

        def write() -> None:
            try:
                with store.start("x", detached=True) as task:
                    for number in range(12):
                        task.add_turn(Turn(number=1, agent="a", content=f"turn {number}"))
            except BaseException as error:
                trouble.append(error)

        threads = [threading.Thread(target=write) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert trouble == []
        assert {store.summary(task_id).turns for task_id in store.task_ids()} == {12}
        store.close()

    def test_without_one_statements_are_prepared(self, postgres: str) -> None:
        direct = Postgres(postgres)
        assert direct.connection.prepare_threshold is not None
        direct.close_all()

    def test_listening_has_an_address_of_its_own(self, pooled: str, postgres: str) -> None:
        both = Postgres(pooled, postgres)
        stop, ready, heard = threading.Event(), threading.Event(), []
        thread = threading.Thread(target=both.listen, args=(stop, heard.append), kwargs={"ready": ready})
        thread.start()
        ready.wait(30)
        both.notifier.notify("rawko_ws_x", "abc")
        wait_for(lambda: heard == ["rawko_ws_x abc"])
        stop.set()
        thread.join()
        both.close_all()


class _Recorded:
    """A connection that remembers its statements."""

    def __init__(self, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        import psycopg

        execute = psycopg.Connection.execute

        def recorded(connection: Any, query: Any, *arguments: Any, **more: Any) -> Any:
            self.statements.append(str(query))
            return execute(connection, query, *arguments, **more)

        monkeypatch.setattr(psycopg.Connection, "execute", recorded)


class TestDistributed:
    """What a distributed engine does not take."""

    def test_migrations_run_one_statement_at_a_time(
        self, postgres: str, workspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        database = Postgres(postgres)
        recorded = _Recorded(database, monkeypatch)
        PostgresStore(database, workspace, root=tmp_path).close()
        assert len(recorded.statements) > 30
        assert [each for each in recorded.statements if ";" in each.strip().rstrip(";")] == []
        database.close_all()

    def test_scripts_are_split_at_their_statements(self) -> None:
        for _, script in (*MIGRATIONS, *PG_MIGRATIONS):
            for statement in statements_of(script):
                assert re.match(r"(CREATE|ALTER|UPDATE|INSERT)\b", statement), statement

    def test_no_clock_and_no_advisory_lock(self) -> None:
        """In ON CONFLICT DO UPDATE, volatile functions are rejected; advisory locks are of one node alone."""
        folder = Path(__file__).parent.parent.parent / "rawko_state" / "backends" / "postgres"
        sources = {path.name: path.read_text() for path in folder.glob("*.py")}
        assert [name for name, text in sources.items() if "pg_advisory" in text] == []
        for name, text in sources.items():
            for updated in re.findall(r"DO UPDATE SET(.*?)(?:RETURNING|\n\s*\()", text, re.S):
                assert not re.search(r"clock_timestamp|now\(\)|random", updated), name

    def test_locks_are_rows(self, postgres: str, workspace: str, tmp_path: Path) -> None:
        """While one imports, another waits."""
        one = PostgresStore(postgres, workspace, root=tmp_path)
        other = PostgresStore(postgres, workspace, root=tmp_path)
        order: list[str] = []

        def second() -> None:
            with other.import_lock():
                order.append("second")
            other.close()

        third = Postgres(postgres)
        with one.import_lock():
            thread = threading.Thread(target=second)
            thread.start()
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
            wait_for(lambda: third.connection.execute(query, (f"%{workspace}%locks%",)).fetchone() != (0,))
            order.append("first")
        thread.join()
        assert order == ["first", "second"]
        one.close()
        third.close_all()

    def test_a_long_output_and_its_record_are_one_transaction(
        self, postgres: str, workspace: str, tmp_path: Path
    ) -> None:
        store = PostgresStore(postgres, workspace, root=tmp_path)
        task = store.start("x", detached=True)

        def fails(record: object) -> None:
            raise StorageError("no", "no")

        turn = Turn(number=1, agent="a", tools=(ToolCall("t", "a", "ok", None, "long " * 10_000),))
        task.before_write = fails
        with pytest.raises(StorageError):
            task.add_turn(turn)
        count = f"SELECT count(*) FROM {store.tasks.rows.at('blobs')}"
        assert store.postgres.connection.execute(count).fetchone() == (0,)
        task.before_write = None
        task.add_turn(turn)
        assert store.postgres.connection.execute(count).fetchone() == (1,)
        (blob,) = store.blobs_of(task.id).values()
        assert blob == b"long " * 10_000
        store.close()


class TestConflicts:
    def test_a_deadlock_is_tried_again(self, postgres: str, workspace: str, tmp_path: Path) -> None:
        store = PostgresStore(postgres, workspace, root=tmp_path)
        database = store.postgres
        table = store.tasks.rows.at("kv")
        for name in ("a", "b"):
            database.connection.execute(f"INSERT INTO {table} VALUES ('s', %s, '0')", (name,))
        met, tried = threading.Barrier(2, timeout=30), [0]

        def crossing(first: str, second: str) -> None:
            def work() -> None:
                tried[0] += 1
                with database.transaction() as connection:
                    update = f"UPDATE {table} SET v = (v::int + 1)::text WHERE k = %s RETURNING v"
                    connection.execute(update, (first,)).fetchone()
                    if tried[0] <= 2:
                        met.wait()
                    connection.execute(update, (second,)).fetchone()

            database.retrying(work)
            database.close()

        threads = [threading.Thread(target=crossing, args=each) for each in (("a", "b"), ("b", "a"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tried[0] == 3
        assert database.connection.execute(f"SELECT v FROM {table}").fetchall() == [("2",), ("2",)]
        store.close()

    def test_not_for_ever(self, postgres: str) -> None:
        from psycopg.errors import SerializationFailure

        database, tried = Postgres(postgres), [0]

        def work() -> None:
            tried[0] += 1
            raise SerializationFailure("again")

        with pytest.raises(SerializationFailure):
            database.retrying(work)
        assert tried[0] == 6
        database.close_all()


class TestHosts:
    def test_the_address_to_listen_at_is_checked_too(self) -> None:
        """Otherwise followers on other servers would be late, and nothing would say why."""
        with pytest.raises(InvalidValue, match="Not a database address"):
            Postgres("postgresql://127.0.0.1:9/none", "nonsense")

    def test_of_several_hosts_the_one_that_writes_is_wanted(self) -> None:
        assert Postgres("postgresql://u@a,b/db").url.endswith("?target_session_attrs=read-write")
        assert Postgres("postgresql://u@/db?host=/a,/b").url.endswith("&target_session_attrs=read-write")
        for url in ("postgresql://u@a/db", "postgresql://u@a,b/db?target_session_attrs=any"):
            assert Postgres(url).url == url


class TestAppends:
    """An append is one statement."""

    @pytest.mark.parametrize(
        "text", ["nul \x00 in it", "a lone \ud800 surrogate", "a\\b 'quoted' {x,y} $1 %s \n\t é 数据"]
    )
    def test_odd_texts(self, postgres: str, workspace: str, tmp_path: Path, text: str) -> None:
        with contextlib.closing(PostgresStore(postgres, workspace, root=tmp_path)) as store:
            with store.start("x", detached=True) as task:
                task.add_turn(Turn(agent="dev", content=text, state={"said": text}, model=text.replace("\n", " ")))
                task.add_turn(Turn(agent="dev", content="after"))
            assert store.turn(task.id, 1).content == text
            assert store.turn(task.id, 1).state == {"said": text}
            assert store.summary(task.id).turns == 2

    def test_a_connection_that_is_lost_in_between_is_replaced(
        self, postgres: str, workspace: str, tmp_path: Path
    ) -> None:
        with contextlib.closing(PostgresStore(postgres, workspace, root=tmp_path)) as store:
            with store.start("x", detached=True) as task:
                for number in range(3):
                    task.add_turn(Turn(agent="dev", content=f"n {number}"))
                    store.postgres.connection.close()
            assert store.summary(task.id).turns == 3

    def test_connections_that_postgres_has_ended_are_replaced_before_they_are_used(
        self, postgres: str, workspace: str, tmp_path: Path
    ) -> None:
        """It says goodbye before it closes them, so reading from one succeeds once more."""
        with contextlib.closing(PostgresStore(postgres, workspace, root=tmp_path)) as store:
            ids = [store.start("x", detached=True).id for _ in range(3)]
            for task_id in ids:
                pid = store.postgres.connection.info.backend_pid
                with psycopg.connect(postgres, autocommit=True) as other:
                    other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
                assert store.summary(task_id).turns == 0
                assert store.postgres.connection.info.backend_pid != pid
