"""The life of a task: its statuses, live turns, events, questions, pause and cancel, resume, follow-up, fork, snapshots."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from rawko_state.backends.files.store import FileStore
from rawko_state.model import status as words
from rawko_state.store import TaskFilter
from tests.tasks.lives import Worker


class StatusTable(RuleBasedStateMachine):
    """Two processes walk the table of moves; a third looks. Whoever asks, the answer is the table's."""

    tasks = Bundle("tasks")

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory(prefix="rawko-life-")
        self.root = Path(self.folder.name)
        self.workers = [Worker(self.root), Worker(self.root)]
        self.looker = FileStore(self.root, warn=lambda message: None)
        self.expected: dict[str, str] = {}
        self.question: set[str] = set()
        self.holder: dict[str, int] = {}

    def teardown(self) -> None:
        if hasattr(self, "workers"):
            for worker in self.workers:
                worker.end()
            self.looker.close()
            self.folder.cleanup()

    @rule(target=tasks, who=st.integers(0, 1))
    def start(self, who: int) -> str:
        task_id = self.workers[who]("start")
        self.expected[task_id], self.holder[task_id] = "running", who
        return task_id

    @rule(task=tasks, who=st.integers(0, 1))
    def turn(self, task: str, who: int) -> None:
        answer = self.workers[who]("turn", task, "words")
        now = self.expected[task]
        if now in words.FINISHED:
            mine = self.holder.get(task) == who and now == "cancelled"
            assert answer == ("stopped cancelled" if mine else "error IllegalMove")
        elif now == "paused" and self.holder.get(task) == who:
            assert answer == "stopped paused"
        else:
            assert answer == "ok"

    @rule(task=tasks, who=st.integers(0, 1))
    def live(self, task: str, who: int) -> None:
        answer = self.workers[who]("live", task, "words")
        now = self.expected[task]
        if self.holder.get(task) != who:
            assert answer == "error RawkoError"
        elif now in ("paused", "cancelled"):
            assert answer == f"stopped {now}"
        else:
            assert answer == ("error IllegalMove" if now in words.FINISHED else "ok")

    @rule(task=tasks, who=st.integers(0, 1))
    def ask(self, task: str, who: int) -> None:
        answer = self.workers[who]("ask", task)
        now = self.expected[task]
        if now in ("running", "waiting"):
            assert answer == "ok"
            self.expected[task] = "waiting"
            self.question.add(task)
        else:
            assert answer.startswith(("error IllegalMove", "stopped"))

    @rule(task=tasks, who=st.integers(0, 1))
    def answer(self, task: str, who: int) -> None:
        answer = self.workers[who]("answer", task)
        now = self.expected[task]
        if task not in self.question:
            assert answer == "error NoAnswer"
        elif now in words.FINISHED:
            assert answer in ("error IllegalMove", "error NoAnswer")
        else:
            assert answer == "ok"
            self.question.discard(task)
            if now == "waiting":
                self.expected[task] = "running"

    @rule(task=tasks, who=st.integers(0, 1), wanted=st.sampled_from(["paused", "cancelled", "running"]))
    def set_status(self, task: str, who: int, wanted: str) -> None:
        answer = self.workers[who](wanted, task)
        now = self.expected[task]
        if now == wanted or words.is_legal(now, wanted):
            assert answer == "ok"
            self.expected[task] = wanted
            if wanted == "cancelled":
                self.question.discard(task)
        else:
            assert answer == "error IllegalMove"

    @rule(task=tasks, who=st.integers(0, 1), outcome=st.sampled_from(["success", "failure"]))
    def finish(self, task: str, who: int, outcome: str) -> None:
        answer = self.workers[who](outcome, task)
        if self.expected[task] in words.FINISHED:
            assert answer == "error IllegalMove"
        else:
            assert answer == "ok"
            self.expected[task] = words.RESULT_STATUS[outcome]
            self.question.discard(task)
            if self.holder.get(task) == who:
                del self.holder[task]

    @rule(task=tasks, who=st.integers(0, 1), message=st.sampled_from(["", "more"]))
    def resume(self, task: str, who: int, message: str) -> None:
        message = message and "a"  # one of the choices, should it be an answer
        answer = self.workers[who]("resume", task, message)
        if task in self.holder:
            assert answer == "error TaskBusy"
        else:
            assert answer == "ok"
            if self.expected[task] in words.FINISHED or message:
                self.question.discard(task)
            self.expected[task], self.holder[task] = "waiting" if task in self.question else "running", who

    @rule(task=tasks)
    def let_go(self, task: str) -> None:
        if task in self.holder:
            assert self.workers[self.holder.pop(task)]("close", task) == "ok"

    @invariant()
    def everybody_sees_the_same(self) -> None:
        shown = (
            {summary.id: summary.status for summary in self.looker.history(TaskFilter())}
            if hasattr(self, "looker")
            else {}
        )
        for task, expected in getattr(self, "expected", {}).items():
            if expected == "running" and task not in self.holder:
                expected = "interrupted"
            assert shown[task] == self.looker.status(task) == expected


TestStatusTable = StatusTable.TestCase


TestStatusTable.settings = settings(
    max_examples=6, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
