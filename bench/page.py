"""The page: time to the first byte and until it can be used, the list at many tasks, a long task, search from key to result.

    python bench/page.py [--tasks 1000,100000] [--each 10] [--turns 10000] [--browser]

Times of the server are medians of requests over one connection, beside a request that does nothing (/healthz). With --browser
(pip install 'rawko-state[browser]', Chromium) the same in a browser: until the page's scripts are at work, from a key to the
results, and the memory of a long task. ``--beside 1000`` compares with agentsview (pip install agentsview) on the same sessions.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from histories import write_history

from rawko_state.backends.select import open_files
from rawko_state.model.entries import FileTouch, ToolCall, Turn


class Server:
    """rawko serve, in a process of its own."""

    def __init__(self, root: Path) -> None:
        code = "from rawko_state.__main__ import main; main()"
        command = [sys.executable, "-c", code, "-C", str(root), "serve", "--port", "0", "--quiet", "--rate", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:([0-9]+)", self.process.stderr.readline())
        assert found is not None
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def median(self, path: str, rounds: int = 15) -> tuple[float, float, int]:
        """Milliseconds to the first byte and to the last, and bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        first, last, size = [], [], 0
        for number in range(rounds + 2):
            start = time.perf_counter()
            connection.request("GET", path)
            response = connection.getresponse()
            began = time.perf_counter()
            size = len(response.read())
            assert response.status == 200, (path, response.status)
            if number >= 2:  # what the first request loads stays
                first.append((began - start) * 1000)
                last.append((time.perf_counter() - start) * 1000)
        connection.close()
        return statistics.median(first), statistics.median(last), size


def long_task(root: Path, turns: int) -> str:
    store = open_files(root)
    task = store.start("A task of many turns", agent="developer", detached=True)
    for number in range(turns):
        call = ToolCall("Bash", f"pytest -q tests/test_{number}.py", "ok", None, "12 passed in 0.5s", None, {})
        files = (FileTouch("write", f"src/m{number % 50}.py"),) if number % 9 == 0 else ()
        content = f"Turn {number}: I **changed** `f{number}` and ran the tests.\n\n- one\n- two\n"
        task.add_turn(Turn(number=1, agent="developer", status="complete", content=content, tools=(call,), files=files))
    task.close()
    return task.id


def show(name: str, server: Server, path: str, floor: float) -> None:
    first, last, size = server.median(path)
    print(
        f"{name:44} {first:8.1f} ms to the first byte {last:8.1f} ms in all  {last / floor:6.1f} x /healthz  {size / 1000:7.0f} kB"
    )


def in_browser(server: Server, task: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for name, path in (("list", "/"), ("task", f"/t/{task}")):
            times, first = [], []
            for _ in range(7):
                start = time.perf_counter()
                page.goto(server.url + path, wait_until="commit")
                page.wait_for_selector("html[data-ready]")
                times.append((time.perf_counter() - start) * 1000)
                first.append(page.evaluate("performance.getEntriesByType('navigation')[0].responseStart"))
            print(
                f"{name + ', in the browser':44} {statistics.median(first):8.1f} ms to the first byte {statistics.median(times):8.1f} ms until usable"
            )
        memory = page.evaluate("performance.memory.usedJSHeapSize") / 1e6
        print(
            f"{'memory of scripts, on the long task':44} {memory:8.1f} MB; {page.locator('.turn').count()} turns, {page.evaluate('document.querySelectorAll(`*`).length')} elements"
        )
        browser.close()


def beside(peers: Path | None, sessions: int) -> None:
    """The same sessions of Claude Code in agentsview's page and in this one: until the newest session can be read in the list."""
    from agents import write_sessions
    from playwright.sync_api import sync_playwright

    path = os.pathsep.join([str(peers), os.environ["PATH"]]) if peers else os.environ["PATH"]
    other = shutil.which("agentsview", path=path)
    if other is None:
        print("\nagentsview is not installed here: not compared")
        return
    with tempfile.TemporaryDirectory(prefix="rawko-bench-") as folder:
        home, project = Path(folder) / "home", Path(folder) / "project"
        (project / ".rawko").mkdir(parents=True)
        write_sessions(home / ".claude", str(project), sessions)
        env = {**os.environ, "HOME": str(home), "DO_NOT_TRACK": "1", "AGENTSVIEW_TELEMETRY_ENABLED": "0"}
        rawko = [sys.executable, "-c", "from rawko_state.__main__ import main; main()", "-C", str(project)]
        subprocess.run([*rawko, "import", "claude-code"], env=env, capture_output=True, check=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        theirs = subprocess.Popen(
            [other, "serve", "--port", str(port), "--no-browser", "--no-update-check"],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.environ["HOME"] = str(home)
        try:
            with Server(project) as ours, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                newest = f"session{sessions - 1} "
                print(
                    f"\n{sessions:,} sessions of Claude Code, the newest one readable in the list (fresh profile, median of 7)"
                )
                until_there(f"http://127.0.0.1:{port}/")
                for name, url in (("rawko", ours.url), ("agentsview", f"http://127.0.0.1:{port}")):
                    first, usable = [], []
                    for _ in range(7):
                        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                        start = time.perf_counter()
                        page.goto(url + "/", wait_until="commit")
                        page.get_by_text(newest).first.wait_for(timeout=60_000)
                        usable.append((time.perf_counter() - start) * 1000)
                        first.append(page.evaluate("performance.getEntriesByType('navigation')[0].responseStart"))
                        page.context.close()
                    print(
                        f"{name:44} {statistics.median(first):8.1f} ms to the first byte {statistics.median(usable):8.1f} ms until readable"
                    )
                browser.close()
        finally:
            theirs.terminate()
            theirs.wait()
            subprocess.run([other, "daemon", "stop"], env=env, capture_output=True, check=False)


def until_there(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


STOPWATCH = """() => {
    let began = 0, done = null, finish = null;
    addEventListener("keydown", () => {
        began = performance.now();
        done = new Promise(resolve => { finish = resolve; });
    }, true);
    new MutationObserver(() => requestAnimationFrame(() => finish(performance.now() - began)))
        .observe(document.body, {attributes: true, attributeFilter: ["data-found"]});
    window.rawkoTook = () => done;
}"""
"""From a key to the frame with its results. The page itself must take the time: Playwright looks only every 100 ms."""


def typing(turns: int) -> None:
    """Search as one types, over turns with the words of real sessions: from each key to its results on the screen."""
    from corpus import write_corpus
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(prefix="rawko-bench-") as folder:
        os.environ["HOME"] = folder
        root = Path(folder) / "project"
        root.mkdir()
        size = write_corpus(root, turns)
        store = open_files(root)
        store.reindex()
        store.flush(wait=True)
        with Server(root) as server, sync_playwright() as playwright:
            print(f"\n{turns:,} turns, {size / 1e6:.0f} MB")
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page()
            page.goto(server.url + "/")
            page.wait_for_selector("html[data-ready]")
            page.evaluate(STOPWATCH)
            for word in ("error", "cache", "skew"):
                page.locator("#q").fill("")
                times = []
                for number in range(1, len(word) + 1):
                    page.locator("#q").press(word[number - 1])
                    page.wait_for_selector(f'body[data-found="{word[:number]}"]', state="attached")
                    times.append(page.evaluate("rawkoTook()"))
                server_ms = server.median(f"/search?q={word}&part=1")[1]
                print(
                    f"{'typing ' + word:44} {statistics.median(times):8.1f} ms median {max(times):8.1f} ms slowest key; the last word alone at the server {server_ms:.1f} ms"
                )
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="1000,20000")
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--each", type=int, default=10, help="turns of every other task")
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--corpus", type=int, metavar="TURNS", help="only: search as one types, over so many turns")
    parser.add_argument("--beside", type=int, metavar="SESSIONS", help="only: the same sessions in agentsview's page")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="the folder with agentsview's command")
    options = parser.parse_args()
    if options.corpus:
        typing(options.corpus)
        return
    if options.beside:
        beside(options.peers, options.beside)
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="rawko-bench-") as folder:
        os.environ["HOME"] = folder
        for tasks in (int(each) for each in options.tasks.split(",")):
            root = Path(folder) / f"of-{tasks}"
            root.mkdir()
            write_history(root, tasks, turns=options.each)
            store = open_files(root)
            store.reindex()
            task = long_task(root, options.turns) if options.turns else store.task_ids()[0]
            store.flush(wait=True)
            with Server(root) as server:
                floor = server.median("/healthz", 50)[1]
                print(f"\n{tasks:,} tasks, one of {options.turns:,} turns")
                show("/healthz", server, "/healthz", floor)
                show("list", server, "/", floor)
                show("list, second page", server, f"/?after={_after(server)}", floor)
                show("list, one status", server, "/?status=failed", floor)
                show("search, a word", server, "/search?q=tests&part=1", floor)
                show("task", server, f"/t/{task}", floor)
                if options.turns > 1000:
                    show("task, at its middle", server, f"/t/{task}/{options.turns // 2}", floor)
                show("figures", server, "/figures", floor)
                show("files", server, "/files", floor)
                if options.browser:
                    in_browser(server, task)


def _after(server: Server) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/api/v1/tasks?sort=updated&limit=50")
    found = json.loads(connection.getresponse().read())
    connection.close()
    return str(found["tasks"][-1]["id"])


if __name__ == "__main__":
    main()
