"""The pages as anybody gets them: whole without JavaScript, bounded, escaped, and honest about what is not known."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest

from rawko_state.model.entries import Diff, FileTouch, Money, Question, ToolCall, Turn
from rawko_state.store import Usage
from rawko_state.store.contract import ProjectStore
from rawko_state.web import figures, jumps
from rawko_state.web.pages import POLICY
from rawko_state.web.tasks import unfinished
from rawko_state.web.timeline import WINDOW
from tests.support.machine import wait_for
from tests.web.visitor import Visitor

XSS = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "'><svg/onload=alert(1)>", "javascript:alert(1)",
    "[x](javascript:alert(1))", "![x](http://evil.example/p.png)", "</pre><script>1</script>", "</title><script>1</script>",
    "{{ 1111*1111 }}", "{% for x in y %}", "&lt;script&gt;", "`<img onerror=1>`", "<a href='data:text/html,<script>'>x</a>",
    "\u202eevil", "\x1b]0;x\x07", "-->", "<!--", "<style>*{}</style>", "<base href=//evil.example>", "<meta http-equiv=refresh>",
)  # fmt: skip
WHEN = datetime(2024, 1, 15, 10, 30, tzinfo=timezone.utc)
HUNKS = "@@ -1,2 +1,2 @@\n def f():\n-    return 1\n+    return 2"


def diff(path: str) -> Diff:
    return Diff(path, path, HUNKS, None, 1, 1)


@pytest.fixture(scope="module")
def told(store: ProjectStore) -> str:
    """A task with one of everything."""
    task = store.start(
        "Mend the **cart**", agent="developer", model="atlas-4", labels={"sev": "2"}, created=WHEN, detached=True
    )
    call = ToolCall("Edit", "src/cart.py", "ok", None, None, None, {"diff": 1, "input": {"file_path": "src/cart.py"}})
    failed = ToolCall(
        "Bash", "pytest -q", "exit 1", None, "E  1 failed", None, {"input": {"command": "pytest -q"}, "error": True}
    )
    long = ToolCall("Read", "big.txt", "ok", None, "line\n" * 5_000, None, {"input": {"file_path": "big.txt"}})
    task.add_turn(
        Turn(
            number=1,
            agent="developer",
            status="complete",
            content="I **look**.",
            thinking="hidden thought",
            tools=(call, failed, long),
            diffs=(diff("src/cart.py"),),
            tokens={"in": 10, "out": 5},
            started=WHEN,
        )
    )
    task.say("And the tests?", by="mara")
    task.add_turn(
        Turn(
            number=1,
            agent="tester",
            status="complete",
            content="Done.",
            files=(FileTouch("write", "docs/a.md"),),
            cost=Money(Decimal("0.25")),
        )
    )
    task.ask("tester", Question("Which one?", ("left", "right"), "left"))
    task.close()
    return task.id


@pytest.fixture(scope="module")
def long(store: ProjectStore) -> str:
    task = store.start("A long one", agent="developer", detached=True)
    for number in range(1, 261):
        tools = (ToolCall("Bash", "x", "exit 1", None, None, None, {"error": True}),) if number == 250 else ()
        files = (FileTouch("write", "a.py"),) if number in (30, 220) else ()
        task.add_turn(
            Turn(number=1, agent="developer", status="complete", content=f"turn {number}", tools=tools, files=files)
        )
    task.finish("success", "ready")
    return task.id


def every_page(task: str) -> list[str]:
    at = f"/t/{task}"
    return [
        "/", "/?status=failed", "/search?q=cart", "/search?q=cart&status=failed&agent=tester", at, f"{at}/1", f"{at}?diff=split&tools=open", f"{at}/changes", f"{at}/check",
        f"{at}/fork/1", f"{at}/1/out/3", f"{at}/1/diff/1", f"{at}/1?seal={'0' * 16}", "/?trashed=abc123", "/files",
        "/file?path=src/cart.py", "/figures", "/figures?period=all&by=agent", "/trash", "/health", "/seals", "/projects", "/keys",
    ]  # fmt: skip


def test_every_page_is_whole_and_under_a_strict_policy(visitor: Visitor, told: str) -> None:
    for path in every_page(told):
        page = visitor.get(path)
        assert page.status == 200, (path, page.words[:200])
        assert page.headers["content-security-policy"] == POLICY
        assert page.headers["x-frame-options"] == "DENY"
        assert page.headers["cache-control"] == "no-store"
        assert "<h1" in page.text, path
        assert 'lang="en"' in page.text, path
        for tag, given in page.tags:
            assert tag != "style", path
            assert tag != "script" or given["src"].startswith("/static/"), path
            assert not [name for name in given if name == "style" or name.startswith("on")], (path, tag, given)
            for name in ("src", "href", "action"):
                assert given.get(name, "/").startswith(("/", "#", "?", "https://")), (path, tag, given)


def test_a_task_is_told(visitor: Visitor, told: str) -> None:
    page = visitor.get(f"/t/{told}")
    assert "<strong>look</strong>" in page.text
    assert "hidden thought" in page.text
    assert '<details class="think">' in page.text
    assert "pytest -q" in page.text
    assert 'class="tool err"' in page.text
    assert 'class="diff"' in page.text
    assert "Which one?" in page.text
    assert 'value="right"' in page.text
    assert "line\nline" not in page.text, "a long output comes when it is opened"
    output = visitor.get(f"/t/{told}/1/out/3?part=1")
    assert output.text.count("line\n") >= 4_999
    assert "<html" not in output.text


def test_what_is_not_known_is_a_word_and_not_a_zero(visitor: Visitor, store: ProjectStore) -> None:
    task = store.start("Nothing is known of it", detached=True)
    task.close()
    page = visitor.get(f"/t/{task.id}")
    assert "$0.00" not in page.words
    assert "Neither cost nor tokens are recorded" in page.text
    _, *rows = visitor.get(f"/?sort=created&task={task.id}").text.split("<tr ")
    row = next(part for part in rows if task.id in part)
    assert "Neither cost nor tokens are recorded" in row
    assert "$0.00" not in row
    assert "unknown" in row


def test_the_list_is_paged_by_key_and_shows_each_task_once(visitor: Visitor, store: ProjectStore, told: str) -> None:
    for number in range(60):
        store.start(f"one of many {number}", agent="counter", detached=True).close()
    seen: list[str] = []
    page = visitor.get("/?agent=nobody")
    assert "No task matches" in page.words
    path = "/?sort=created"
    while path:
        page = visitor.get(path)
        seen += re.findall(r'data-id="([^"]+)"', page.text)
        found = re.search(r'rel="next" href="([^"]+)"', page.text)
        path = found[1].replace("&amp;", "&") if found else ""
    assert len(seen) == len(set(seen)) == len(store.task_ids())


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/?status=nonsense", 422),
        ("/?since=blah", 422),
        ("/?sort=cost", 422),
        ("/t/zzzzzz", 404),
        ("/t/zzzzzz/1", 404),
        ("/nowhere", 404),
        ("/static/../pages.py", 404),
        ("/static/nothing.js", 404),
        ("/t/x%00y", 404),
        ("/search?q=(", 200),
        ("/w/nope/", 400),
    ],
)
def test_a_wrong_address_is_a_page_that_says_so(visitor: Visitor, told: str, path: str, status: int) -> None:
    page = visitor.get(path)
    assert page.status == status, page.words[:200]
    assert "Traceback" not in page.text


def test_a_search_marks_what_it_found(visitor: Visitor, store: ProjectStore) -> None:
    task = store.start("find the zebra <b>bold</b>", detached=True)
    task.close()
    page = visitor.get("/search?q=zebra")
    assert "<mark>zebra</mark>" in page.text
    assert "<b>bold</b>" not in page.text
    assert "<html" not in visitor.get("/search?q=zebra&part=1").text
    other = store.start("another zebra", detached=True)
    other.close()
    assert other.id in visitor.get("/search?q=zebra").text
    assert f"/t/{other.id}" not in visitor.get(f"/search?q=zebra&task={task.id}").text


def test_no_content_becomes_markup_anywhere(visitor: Visitor, store: ProjectStore) -> None:
    text = " ".join(XSS)
    task = store.start(
        text,
        title=text,
        agent="<b>agent</b>",
        model="<i>model</i>",
        branch="<u>b</u>",
        labels={"l": "<s>v</s>"},
        user="<x>",
        detached=True,
    )
    call = ToolCall("<tool>", text, text, None, text, None, {"input": {"command": text}, "error": text})
    path = "<img src=x onerror=alert(1)>.py"
    task.add_turn(
        Turn(
            number=1,
            agent="<b>agent</b>",
            model="<i>model</i>",
            status="complete",
            content=text,
            thinking=text,
            reason=text,
            tools=(call, call, call),
            diffs=(Diff(path, path, f"@@ -1 +1 @@\n-{XSS[0]}\n+{XSS[1]}", None, 1, 1),),
            by="<y>",
        )
    )
    task.say(text, by="<z>")
    task.note(text, by="<n>", in_context=True)
    task.ask("<b>agent</b>", Question(text, ("<c1>", "<c2>"), "<c1>", None, "question", {"<k>": "<v>"}))
    task.close()
    for at in (
        *every_page(task.id),
        "/search?q=script",
        f"/file?path={path}".replace("<", "%3C").replace(" ", "%20").replace(">", "%3E"),
    ):
        page = visitor.get(at)
        assert page.status == 200, (at, page.words[:200])
        body = page.text
        for bad in (
            "<script>",
            "<img",
            "onerror=alert(1)>",
            "<svg/onload",
            "<style>",
            "<base",
            "<b>agent",
            "<i>model",
            "<x>",
            "<y>",
            "<z>",
            "<n>",
            "<c1>",
            "<k>",
            "<v>",
            "\x1b",
            "\u202e",
        ):
            assert bad not in body, (at, bad)
        assert not re.search(r'href="(?:javascript|data|//)', body), at
        assert "1234321" not in page.text, "a template is not filled in"


def test_a_long_task_is_a_window_with_gaps_that_open(visitor: Visitor, long: str) -> None:
    page = visitor.get(f"/t/{long}")
    shown = [each for each in page.ids() if re.fullmatch("t[0-9]+", each)]
    assert len(shown) == WINDOW
    assert shown[0] == "t1"
    assert shown[-1] == "t260"
    gap = re.search(r'class="gap" data-from="(\d+)" data-to="(\d+)"', page.text)
    assert gap is not None
    assert int(gap[2]) - int(gap[1]) + 1 == 260 - WINDOW
    part = visitor.get(f"/t/{long}/turns?from={gap[1]}&to={gap[2]}&part=1")
    opened = [each for each in part.ids() if each.startswith("t")]
    assert opened[0] == f"t{gap[1]}"
    assert len(opened) == 260 - WINDOW
    assert sorted(shown + opened) == sorted(set(shown + opened))
    middle = visitor.get(f"/t/{long}/130")
    assert middle.text.count('class="gap"') == 2
    assert "t130" in middle.ids()
    assert visitor.get(f"/t/{long}/261").status == 404


def test_the_server_finds_the_next_prompt_edit_and_error(visitor: Visitor, long: str, told: str) -> None:
    at = f"/t/{long}/next"
    assert visitor.get(f"{at}?kind=edit&from=1").to == f"/t/{long}/30#t30"
    assert visitor.get(f"{at}?kind=edit&from=30").to == f"/t/{long}/220#t220"
    assert visitor.get(f"{at}?kind=edit&from=220&back=1").to == f"/t/{long}/30#t30"
    assert visitor.get(f"{at}?kind=error&from=100").to == f"/t/{long}/250#t250"
    assert "no-later-edit" in visitor.get(f"{at}?kind=edit&from=220").to
    assert visitor.get(f"/t/{told}/next?kind=prompt&from=1").to == f"/t/{told}/2#t2"


def test_the_search_for_an_error_goes_on_where_it_ended(
    visitor: Visitor, long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the task is, a request reads for a while only."""
    monkeypatch.setattr(jumps, "_SECONDS", -1.0)
    monkeypatch.setattr(jumps, "_AT_ONCE", 100)
    first = visitor.get(f"/t/{long}/next?kind=error&from=1&diff=split")
    assert first.to == f"/t/{long}/101?said=none-yet&diff=split#t101"
    assert "No error up to this turn" in visitor.follow(first).words
    assert visitor.get(f"/t/{long}/next?kind=error&from=201").to == f"/t/{long}/250#t250"
    assert "no-later-error" in visitor.get(f"/t/{long}/next?kind=error&from=250").to
    assert visitor.get(f"/t/{long}/next?kind=error&from=260&back=1").to == f"/t/{long}/250#t250"
    assert "none-yet" in visitor.get(f"/t/{long}/next?kind=error&from=250&back=1").to


def test_a_huge_edit_makes_no_huge_page_and_all_of_it_can_be_opened(visitor: Visitor, store: ProjectStore) -> None:
    before, after = ("".join(f"{word} {number}\n" for number in range(20_000)) for word in ("old", "new"))
    with store.start("A huge edit") as task, task.turn("developer") as turn:
        key = turn.begin_tool("Edit", "gen/huge.txt")
        turn.edit("gen/huge.txt", before=before, after=after, tool=key)
        turn.end_tool(key, "ok")
        turn.edit("gen/loose.txt", before=before[:9_000], after=after[:9_000])
        for path in ("gen/huge.txt", "gen/loose.txt"):
            turn.touch("write", path)
    assert store.turn(task.id, 1).diffs[0].blob is not None, "kept apart"
    at = f"/t/{task.id}"
    page = visitor.get(at)
    assert page.words.count("gen/loose.txt") >= 2, "a diff without a tool call has the name of its file"
    assert 'class="diff' not in page.text
    addresses = [at, f"{at}?tools=open", f"{at}/changes", f"{at}/changes?diff=split", f"{at}/1/out/1", f"{at}/1/diff/2"]
    for address in (*addresses, "/file?path=gen/huge.txt", "/file?path=gen/loose.txt&diff=split"):
        found = visitor.get(address)
        assert len(found.text) < 300_000, address
        for link in re.findall(r'class="further" href="([^"]+)"', found.text):
            assert "old" in visitor.get(link.replace("&amp;", "&")).text, address
    last = visitor.get(f"{at}/1/diff/1?at=39900&part=1")
    assert "new 19999" in last.text
    assert "further" not in last.text
    assert visitor.get(f"{at}/1/diff/3").status == 404


def test_what_a_program_said_as_it_failed_keeps_its_lines(visitor: Visitor, store: ProjectStore) -> None:
    with pytest.raises(RuntimeError), store.start("It fails") as task:
        raise RuntimeError("first *line*\n    second <line>")
    assert '<p class="pre">RuntimeError: first *line*\n    second &lt;line&gt;</p>' in visitor.get(f"/t/{task.id}").text


def test_models_that_only_turns_name_are_known(visitor: Visitor, store: ProjectStore) -> None:
    with store.start("Which model was it?") as task:
        for model in ("atlas-7", "quill-9"):
            with task.turn("developer", model=model) as turn:
                turn.say("I was it.")
    assert "Models atlas-7, quill-9 " in visitor.get(f"/t/{task.id}").words
    assert "Which model was it?" in visitor.get("/?model=atlas-7").words


def test_a_link_with_a_seal_says_whether_it_still_shows_what_it_did(
    visitor: Visitor, store: ProjectStore, root: Path
) -> None:
    task = store.start("sealed", detached=True)
    task.add_turn(Turn(number=1, agent="a", status="complete", content="the original words"))
    task.add_turn(Turn(number=1, agent="a", status="complete", content="more"))
    task.close()
    page = visitor.get(f"/t/{task.id}")
    link = re.search(rf'href="(/t/{task.id}/1\?seal=([0-9a-f]{{16}}))#t1"', page.text)
    assert link is not None
    assert "It is unchanged since the link was made" in visitor.get(link[1]).words
    assert "is not what the link was made for" in visitor.get(f"/t/{task.id}/1?seal={'0' * 16}").words
    assert "can't be checked" in visitor.get(f"/t/{task.id}/1?seal=what").words
    path = root / ".rawko/state/tasks" / store.find(task.id).filename
    path.write_bytes(path.read_bytes().replace(b"the original words", b"the improved words"))
    assert "was changed after it was recorded" in visitor.get(link[1]).words


def test_changes_between_two_turns(visitor: Visitor, told: str) -> None:
    page = visitor.get(f"/t/{told}/changes?from=1&to=1")
    assert "src/cart.py" in page.text
    assert "docs/a.md" not in page.text
    page = visitor.get(f"/t/{told}/changes")
    assert "Changed, without a record of the lines" in page.words
    assert "docs/a.md" in page.text
    assert 'class="diff two"' in visitor.get(f"/t/{told}/changes?diff=split").text


def test_a_file_has_its_history_across_tasks(visitor: Visitor, store: ProjectStore, told: str) -> None:
    other = store.start("another hand", detached=True)
    other.add_turn(Turn(number=1, agent="b", status="complete", diffs=(diff("src/cart.py"),)))
    other.close()
    page = visitor.get("/file?path=src/cart.py")
    assert page.text.count('class="diff"') == 2
    assert "another hand" in page.words
    assert "Mend the" in page.words
    assert "lines not recorded" in visitor.get("/file?path=docs/a.md").words


def test_figures_have_their_numbers_as_tables(visitor: Visitor, told: str) -> None:
    page = visitor.get("/figures?period=all")
    assert page.text.count("<svg") >= 2
    assert page.text.count("<table") >= 5
    assert "not recorded" in page.words
    assert "without a price" in page.words, "a sum says what it leaves out"


def test_cost_and_tokens_are_drawn_by_model_or_by_agent(visitor: Visitor, store: ProjectStore) -> None:
    with store.start("Cost something") as task, task.turn("miser", model="atlas-9") as turn:
        turn.end(cost="1.25", tokens={"in": 5, "out": 5})
    legend = re.compile(r'<p class="legend">.*?</p>', re.DOTALL)
    for address, wanted, other in (("/figures", "atlas-9", "miser"), ("/figures?by=agent", "miser", "atlas-9")):
        found = "".join(legend.findall(visitor.get(address).text))
        assert f"{wanted} $1.25" in found
        assert other not in found


def test_what_a_person_says_is_not_a_turn_without_a_price() -> None:
    total = figures.Sum()
    total.add(Usage(None, "user", None, False, 3, 0, None, None, None, None, None))
    assert total.unpriced == 0
    assert not total.money.is_unknown


def test_a_new_project_shows_how_to_begin(tmp_path: Path) -> None:
    from rawko_state.web.pages import routes
    from tests.support.serving import served

    (tmp_path / "new").mkdir()
    with served(tmp_path / "new", pages=routes) as running:
        page = Visitor(running.port).get("/")
        assert page.status == 200
        assert "No tasks here yet" in page.words
        assert "rawko import" in page.words
        assert " 0 " not in page.words


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("zeb", "zeb*"), ("fix zeb", "fix zeb*"), ("ze", None), ("zebra ", None), ("agent:zeb", None), ('"the zeb', None), ("a AND", None),
        ("zeb*", None), ("-x zeb", "-x zeb*"), ("sso.rs", None),
    ],
)  # fmt: skip
def test_the_last_word_may_be_unfinished(query: str, expected: str | None) -> None:
    assert unfinished(query) == expected


def test_a_search_finds_words_that_begin_like_the_one_somebody_types(visitor: Visitor, store: ProjectStore) -> None:
    store.start("feed the zebroid", detached=True).close()
    typed = visitor.get("/search?q=zebr&part=1")
    assert "<mark>zebroid</mark>" in typed.text
    page = visitor.get("/search?q=zebr")
    assert "<mark>zebroid</mark>" in page.text
    assert "begin with it" in page.words
    assert "begin with it" not in visitor.get("/search?q=zebroid").words
    assert "Nothing found" in visitor.get("/search?q=zebx").words
    choices = visitor.get("/palette?q=zebr&part=1")
    assert "feed the" in choices.text
    assert visitor.get("/palette?q=zebr").to == "/search?q=zebr"


def test_a_prompt_says_who_asked_and_when(visitor: Visitor, store: ProjectStore) -> None:
    task = store.start("of somebody", user="mara", agent="developer", created=WHEN, detached=True)
    task.close()
    prompt = visitor.get(f"/t/{task.id}").text.partition('id="r1"')[2].partition("</article>")[0]
    assert ">mara<" in prompt
    assert 'datetime="' in prompt
    unknown = store.start("of nobody", agent="developer", detached=True)
    unknown.close()
    assert ">someone<" in visitor.get(f"/t/{unknown.id}").text.partition('id="r1"')[2].partition("</article>")[0]


def test_an_end_does_not_repeat_the_last_answer(visitor: Visitor, store: ProjectStore) -> None:
    def end_of(answer: str, summary: str) -> str:
        task = store.start("say it once", agent="developer", detached=True)
        task.add_turn(Turn(agent="developer", status="complete", content=answer))
        task.finish("success", summary)
        return visitor.get(f"/t/{task.id}").text.partition('id="e1"')[2].partition("</article>")[0]

    assert "all quaggas" not in end_of("I found **all quaggas** here.\n\nAnd more.", "I found **all quaggas** here.")
    assert "two quaggas" in end_of("I looked.", "There were two quaggas.")


def test_what_runs_says_what_it_does(visitor: Visitor, store: ProjectStore) -> None:
    task = store.start("busy", agent="developer")

    def line() -> str:
        on_top = visitor.get("/").text.partition("<table")[0]
        return on_top.partition(f'href="/t/{task.id}"')[2].partition("</li>")[0]

    def is_on_top() -> bool:
        task.note("still at it")  # later than tasks that other tests started in the same second
        return bool(line())

    try:
        wait_for(is_on_top)
        with task.turn("developer") as turn:
            turn.tool("Bash", "pytest -q tests", "ok", more={"input": {"command": "pytest -q tests"}})
            assert "Run pytest -q tests" in line()
            turn.progress("Step 2 of 3")
            assert "Step 2 of 3" in line()
            turn.say("Half of them <b>pass</b>. ")
            turn.say("The rest hang.")
            assert "Half of them &lt;b&gt;pass&lt;/b&gt;. The rest hang." in line()
    finally:
        task.finish("success")


def test_the_outline_says_what_was_asked_edited_and_failed_and_how_it_ended(
    visitor: Visitor, store: ProjectStore
) -> None:
    task = store.start("First of all", agent="developer", detached=True)
    edit = ToolCall("Edit", "a.py", "ok", None, None, None, {"diff": 1, "input": {"file_path": "a.py"}})
    ran = ToolCall("Bash", "pytest", "ok", None, "12 passed in 1s", None, {"input": {"command": "pytest"}})
    failed = ToolCall("Bash", "make", "exit 2", None, "no", None, {"input": {"command": "make"}, "error": True})
    task.add_turn(
        Turn(number=1, agent="developer", status="complete", content="x", tools=(edit, ran), diffs=(diff("a.py"),))
    )
    task.add_turn(Turn(number=1, agent="developer", status="complete", content="y", tools=(failed,)))
    task.add_turn(Turn(number=1, agent="developer", status="complete", content="nothing of note"))
    task.say("And now **this**", by="mara")
    task.finish("success")
    page = visitor.get(f"/t/{task.id}")
    outline = page.text.partition('class="outline"')[2].partition("</ul>")[0]
    lines = re.findall(
        r'<a href="([^"]+)"><span class="mono">(.*?)</span> <span(?: class="(\w+)")?>(.*?)</span></a>', outline
    )
    assert lines == [
        ("#r1", "", "p", "First of all"), ("#t1", "1", "", "1 edit, 12 passed"), ("#t2", "2", "bad", "make: exit 2"),
        ("#t4", "4", "p", "And now this"), ("#e1", "", "", "Completed"),
    ]  # fmt: skip
    for address, *_ in lines:
        assert f'id="{address[1:]}"' in page.text
    files = page.text.partition('class="files"')[2].partition("</ul>")[0]
    assert '<span class="add">+1</span> <span class="del">−1</span>' in files


def test_the_outline_of_a_long_task_leads_to_requests_that_are_not_on_the_page(
    visitor: Visitor, store: ProjectStore
) -> None:
    task = store.start("the first request", agent="developer", detached=True)
    task.add_turn(Turn(number=1, agent="developer", status="complete", content="x"))
    task.finish("success")
    with store.resume(task.id, message="the second request", detached=True) as again:
        for _ in range(2 * WINDOW):
            again.add_turn(Turn(number=1, agent="developer", status="complete", content="x"))
    page = visitor.get(f"/t/{task.id}/300").text
    link = re.search(r'<a href="([^"#]+)(#r1)">', page.partition('class="outline"')[2])
    assert link is not None
    assert 'id="r1"' not in page
    assert 'id="r1"' in visitor.get(link[1]).text


def test_the_seals_of_all_tasks_are_checked_in_plain_words(visitor: Visitor, store: ProjectStore, root: Path) -> None:
    task = store.start("to be tampered with", detached=True)
    task.add_turn(Turn(number=1, agent="developer", status="complete", content="I did the thing"))
    task.close()
    path = root / store.summary(task.id).file
    good = path.read_bytes()
    try:
        path.write_bytes(good.replace(b"the thing", b"nothing  "))
        page = visitor.get("/seals")
        assert f'href="/t/{task.id}/check"' in page.text
        assert "Every seal matches" not in page.words
    finally:
        path.write_bytes(good)
    assert f'href="/t/{task.id}/check"' not in visitor.get("/seals").text
