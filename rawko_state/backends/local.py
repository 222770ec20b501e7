"""The local store: task files in the project. The embedded default; needs nothing running."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path

from rawko_state.backends.session import Task
from rawko_state.journal import Chain, Journal, TaskName, TaskReader
from rawko_state.journal.verify import Verdict, verify
from rawko_state.model import Execution, Field, Parent, Request, Resumed, Section, TaskHeader


class LocalStore:
    """The tasks of one project."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).resolve()
        self.journal = Journal(self.root)

    def start(
        self,
        request: str,
        *,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        provider: str | None = None,
        repo: str | None = None,
        branch: str | None = None,
        commit: str | None = None,
        cwd: str | None = None,
        runtime: str | None = None,
        labels: Mapping[str, str] | None = None,
        user: str | None = None,
        by: str | None = None,
        source: str | None = None,
        parent: Parent | None = None,
        created: datetime | None = None,
        detached: bool = False,
        fields: Mapping[str, str] | None = None,
        sections: Mapping[str, str] | None = None,
    ) -> Task:
        """Starts a task; its file is durable when this returns.

        An attached task (the default) is run by this process until it is finished or closed; a detached one may be written
        to by one process after another. ``fields`` become ``X-Name:`` lines of the header.
        """
        header = TaskHeader(
            id="",
            created=created or datetime.now(timezone.utc).replace(microsecond=0),
            status="running",
            title=title,
            parent=parent,
            agent=agent,
            model=model,
            provider=provider,
            repo=repo,
            branch=branch,
            commit=commit,
            cwd=cwd,
            runtime=runtime,
            labels=dict(labels or {}),
            user=user,
            writer="detached" if detached else None,
            source=source,
            extra=tuple(Field(_own(name), value) for name, value in (fields or {}).items()),
            sections=tuple(Section(name, text) for name, text in (sections or {}).items()),
        )
        chain, lease, header = self.journal.create(
            header, [Request(text=request, by=by), Execution()], lease=not detached
        )
        return Task(self.journal, header.id, chain, lease)

    def resume(self, prefix: str, *, by: str | None = None, wait: float = 0.0, detached: bool = False) -> Task:
        """Opens a task to go on with it: takes the lease, turns what a dead writer left into an interrupted turn."""
        name = self.journal.find(prefix)
        lease = self.journal.lease(name.id, wait)
        chain: Chain | None = None
        try:
            chain = self.journal.open(name)
            self.journal.recover_draft(chain, name.id)
            at = datetime.now(timezone.utc).replace(microsecond=0)
            chain.append(lambda state: [Resumed(at=at, by=by, writer="detached" if detached else None)])
        except BaseException:
            if chain is not None:
                chain.close()
            lease.release()
            raise
        if detached:
            lease.release()
            return Task(self.journal, name.id, chain, None)
        return Task(self.journal, name.id, chain, lease)

    def attach(self, prefix: str) -> Task:
        """Opens a task to add to it without running it: notes, answers, single turns of a detached task."""
        name = self.journal.find(prefix)
        return Task(self.journal, name.id, self.journal.open(name), None)

    def find(self, prefix: str) -> TaskName:
        return self.journal.find(prefix)

    def reader(self, prefix: str) -> TaskReader:
        return self.journal.reader(self.journal.find(prefix))

    def status(self, prefix: str) -> str:
        """What the records say, or ``interrupted`` for a running task whose writer is gone."""
        name = self.journal.find(prefix)
        chain: Chain = self.journal.open(name)
        try:
            state = chain.state
        finally:
            chain.close()
        if state.status == "running" and not state.detached and self.journal.holder(name.id) is None:
            return "interrupted"
        return state.status

    def verify(self, prefix: str | None = None, *, repair: bool = False) -> Iterator[Verdict]:
        """Walks one chain, or all of them in order of their names."""
        layout = self.journal.layout
        names = [layout.find(prefix)] if prefix else sorted(layout.names())
        seen: set[str] = set()
        for name in names:
            verdict = verify(layout, name, repair=repair)
            if name.id in seen:
                verdict.faults.append(f"a second file with the id {name.id}; the first one counts")
            seen.add(name.id)
            yield verdict


def _own(name: str) -> str:
    return name if name.startswith("X-") else f"X-{name}"
