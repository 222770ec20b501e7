"""The screen of `rawko pick`: a line to type in, the tasks that match, and a preview beside or below them."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import ConditionalContainer, HSplit, Layout, VSplit, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.output import create_output

from rawko_state.cli.history_cmd import about, main_agent
from rawko_state.cli.history_search import fitted
from rawko_state.cli.printing import counted, one_line, padded, screen, visible, width_of, wrapped
from rawko_state.cli.times import ago, took
from rawko_state.errors import RawkoError
from rawko_state.store import RELEVANCE, Answer, Hit, TaskFilter, TaskSummary

if TYPE_CHECKING:
    from rawko_state.store.contract import Store

_MOST = 200
_NARROW = 50
"""Below this many columns, a row has an id and a request only."""
_BELOW = 6
"""Lines of a preview below the list."""
_WIDE = 100
"""From this many columns on, the preview is beside the list."""
_STYLES = {"waiting": "ansiyellow bold", "paused": "ansiyellow", "interrupted": "ansiyellow", "failed": "ansired"}
_STYLES |= {"running": "ansicyan", "cancelled": "#888888"}
_STEADY = {0x200D: None, 0xFE0F: None, **dict.fromkeys(range(0x1F3FB, 0x1F400))}
_STEADY |= {0x1F1E6 + number: chr(ord("A") + number) for number in range(26)}
"""What joins or colours emoji goes, and flags are letters: terminals and libraries disagree how wide these are, and a screen
that is drawn in parts would be torn."""
Shown = Any
"""Text with styles: a list of pairs of style and text, which prompt_toolkit types as more than that."""

_HALF_TYPED = re.compile(r"\w{2,}\s*$")
"""A query that ends in a word may end in the beginning of one."""


@dataclass(frozen=True)
class Chosen:
    task: str
    command: tuple[str, ...] = ()
    copied: str | None = None
    """What was copied, or should be by hand."""


class Finder:
    """What is on the screen: a query, its results, and which of them is chosen.

    A query is asked when its results are needed, so that keys that are typed quickly cost one search and not one each.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: list[tuple[TaskSummary, Hit | None]] = []
        self._query: str | None = None
        """What was typed and has not been asked yet."""
        self.at = 0
        self.problem = ""
        self._total: int | None = None
        self._previews: dict[tuple[str, int], list[str]] = {}

    def ask(self, query: str) -> None:
        """Takes a query; without one, the newest tasks are listed."""
        self.at, self._query = 0, query

    @property
    def found(self) -> list[tuple[TaskSummary, Hit | None]]:
        query, self._query = self._query, None
        if query is not None:
            self._look_for(query)
        return self._found

    def _look_for(self, query: str) -> None:
        """What is half typed is not an error."""
        self.problem = ""
        try:
            if query.strip():
                answer = self._search(query)
                if not answer.hits and _HALF_TYPED.search(query):
                    answer = self._search(f"{query.rstrip()}*")
                self._found = [(hit.task, hit) for hit in answer.hits]
                if not self._found and answer.suggestion:
                    self.problem = f"Did you mean: {one_line(answer.suggestion, 60)}"
            else:
                self._found = [(summary, None) for summary in self._store.history(TaskFilter(limit=_MOST))]
        except RawkoError as error:
            self.problem = one_line(str(error), 100)

    def _search(self, query: str) -> Answer:
        return self._store.search(query, TaskFilter(sort=RELEVANCE, limit=_MOST))

    @property
    def total(self) -> int:
        """How many tasks there are, counted once."""
        if self._total is None:
            self._total = self._store.count(TaskFilter())
        return self._total

    def move(self, by: int) -> None:
        self.at = max(0, min(len(self.found) - 1, self.at + by))

    @property
    def chosen(self) -> tuple[TaskSummary, Hit | None] | None:
        return self.found[self.at] if self.found else None

    @property
    def turn(self) -> int | None:
        """The turn that matched."""
        return self.chosen[1].turn if self.chosen and self.chosen[1] is not None else None

    def rows(self, height: int, width: int) -> Shown:
        shown: Shown = []
        first = max(0, min(self.at - height // 2, len(self.found) - height))
        ids = max((len(task.id) for task, _ in self.found[first : first + height]), default=0)
        for number, (task, _) in enumerate(self.found[first : first + height], first):
            line = "class:chosen" if number == self.at else ""
            cells = [(f"{line} bold", f"{'▌' if number == self.at else ' '} {task.id:<{ids}}  ")]
            if width >= _NARROW:
                cells.append((line, f"{padded(ago(task.updated), 8)}  "))
                cells.append((f"{line} {_STYLES.get(task.status, '')}", f"{padded(one_line(task.status, 11), 11)}  "))
            left = width - sum(width_of(cell) for _, cell in cells)
            text = one_line(about(task).translate(_STEADY), max(1, left - 1))
            shown += [*cells, (line, f"{text}{' ' * max(0, left - width_of(text))}\n")]
        return shown

    def preview(self, width: int, *, tight: bool = False) -> Shown:
        """``tight``: without empty lines, as there is little room."""
        found = [(style, text.translate(_STEADY)) for style, text in self._preview(width)]
        return [each for each in found if each[1] != "\n"] if tight else found

    def _preview(self, width: int) -> Shown:
        if self.chosen is None:
            return [("", self.problem or "No task matches.")]
        task, hit = self.chosen
        facts = [task.status, ago(task.updated), *([took(task.duration_ms)] if task.duration_ms is not None else [])]
        facts.append(counted(task.turns, "turn"))
        shown: Shown = [("bold", f"{task.id}  "), ("", one_line(" · ".join(facts), width - 10) + "\n")]
        more = [value for value in (main_agent(task), task.model, task.branch) if value]
        if more:
            shown.append(("", one_line(" · ".join(more), width) + "\n"))
        shown.append(("", "\n"))
        for line in wrapped(task.request or "", max(10, width - 2))[:6]:
            shown.append(("bold", f"┃ {one_line(line, width - 2)}\n"))
        if hit is not None and hit.kind and hit.kind != "request":  # the request is above
            where = f"{hit.turn} {hit.agent}" if hit.kind == "turn" else hit.kind
            shown += [("", "\n"), ("bold", f"{one_line(where or '', width)}\n")]
            shown += list(_highlighted(hit, max(10, width - 2)))
        if hit is None or hit.turn != task.turns:
            for line in self._text(task.id, task.turns, width):
                shown.append(("", line + "\n"))
        if task.summary:
            shown.append(("", "\n"))
            mark = "✓" if task.status == "completed" else "–"
            lines = wrapped(task.summary, max(10, width - 2))[:4]
            shown += [("", f"{mark if not number else ' '} {line}\n") for number, line in enumerate(lines)]
        return shown

    def _text(self, task_id: str, turns: int, width: int) -> list[str]:
        """What was said last."""
        if not turns:
            return []
        if (task_id, width) not in self._previews:
            try:
                turn = self._store.turn(task_id, turns)
                said = wrapped(" ".join((turn.content or turn.reason or "")[:1000].split()), max(10, width - 2))[:5]
                lines = ["", one_line(f"{turn.number} {turn.agent}", width), *(f"  {line}" for line in said)]
                self._previews[task_id, width] = lines if said else []
            except RawkoError:
                self._previews[task_id, width] = []
        return self._previews[task_id, width]


def _highlighted(hit: Hit, width: int) -> Iterator[tuple[str, str]]:
    """An excerpt over as many lines as it needs; the words that matched stand out."""
    import click

    plain = click.unstyle(fitted(hit.excerpt, (), 10_000))
    words = {hit.excerpt[first:last].lower() for first, last in hit.highlights}
    for line in wrapped(plain, width)[:4]:
        yield "", "  "
        for number, word in enumerate(line.split(" ")):
            yield "", " " if number else ""
            found = any(each and each in word.lower() for each in words)
            yield ("ansiyellow bold" if found else ""), word
        yield "", "\n"


def choose(store: Store, query: str) -> Chosen | None:
    """Lets a person choose. None if nothing was."""
    finder = Finder(store)
    finder.ask(query)
    typed = Buffer(multiline=False, on_text_changed=lambda buffer: finder.ask(buffer.text))
    typed.text = query
    typed.cursor_position = len(query)
    bindings = KeyBindings()
    _bind(bindings, finder)

    def rows() -> Shown:
        return finder.rows(_list_height(), _list_width(screen().columns))

    def count() -> Shown:
        found = len(finder.found)
        more = "+" if found == _MOST < finder.total else ""
        number = f"{found:,}{more} of {counted(finder.total, 'task')}" if finder.total else "no tasks"
        return [("#888888", finder.problem or number)]

    keys = "enter show · ^R resume · ^F fork · ^Y copy id · ^T copy resume command · esc"
    wide = Condition(lambda: screen().columns >= _WIDE)
    below = ConditionalContainer(
        Window(FormattedTextControl(lambda: finder.preview(screen().columns - 2, tight=True)), height=_BELOW),
        filter=~wide & Condition(_has_room),
    )
    beside = ConditionalContainer(
        VSplit(
            [
                Window(width=1, char="│", style="#888888"),
                Window(
                    FormattedTextControl(lambda: finder.preview(screen().columns - _list_width(screen().columns) - 3)),
                    wrap_lines=False,
                ),
            ],
            padding=1,
        ),
        filter=wide,
    )
    body = HSplit(
        [
            VSplit(
                [
                    Window(FormattedTextControl([("bold", "> ")]), width=2),
                    Window(BufferControl(typed), height=1),
                    Window(FormattedTextControl(count), width=Dimension(min=0, max=60), dont_extend_width=True),
                ],
                height=1,
            ),
            VSplit(
                [Window(FormattedTextControl(rows), width=lambda: _list_width(screen().columns)), beside],
                height=lambda: Dimension(min=1, preferred=_list_height(), max=_list_height()),
            ),
            below,
            Window(FormattedTextControl([("#888888", f" {keys}")]), height=1),
        ]
    )
    from prompt_toolkit.styles import Style

    application: Application[Chosen | None] = Application(
        layout=Layout(body, focused_element=typed),
        key_bindings=bindings,
        full_screen=False,
        erase_when_done=True,
        style=Style.from_dict({"chosen": "reverse"}),
        output=create_output(stdout=sys.stderr),  # so that --print can be used in $(…)
    )
    application.ttimeoutlen = 0.05  # Esc leaves at once
    return application.run()


def _list_width(columns: int) -> int:
    return columns * 6 // 10 if columns >= _WIDE else columns


def _has_room() -> bool:
    """Whether there is room for a preview below the list."""
    return screen().lines >= _BELOW + 6


def _list_height() -> int:
    """At most 60 % of the screen for everything; on a small screen, what is left beside the line to type in and the keys."""
    lines = screen().lines
    whole = max(6, lines * 6 // 10 - 2) if lines >= 10 else lines - 3
    below = _BELOW if screen().columns < _WIDE and _has_room() else 0
    return max(1, max(3, whole - below) if lines >= 10 else whole)


def _bind(bindings: KeyBindings, finder: Finder) -> None:
    def move(by: int) -> Callable[[Any], None]:
        return lambda event: finder.move(by)

    def leave(words: Callable[[TaskSummary], tuple[str, ...]]) -> Callable[[Any], None]:
        """Leaves with a command to run."""

        def act(event: Any) -> None:
            if finder.chosen is not None:
                task = finder.chosen[0]
                event.app.exit(result=Chosen(task.id, words(task)))

        return act

    def copy(text: Callable[[TaskSummary], str]) -> Callable[[Any], None]:
        """Leaves with a text on the clipboard: by OSC 52 in terminals that know it, and printed for those that don't."""

        def act(event: Any) -> None:
            if finder.chosen is not None:
                task = finder.chosen[0]
                code = base64.b64encode(text(task).encode()).decode()
                event.app.output.write_raw(f"\x1b]52;c;{code}\x07")
                event.app.output.flush()
                event.app.exit(result=Chosen(task.id, copied=visible(text(task))))

        return act

    def shown(task: TaskSummary) -> tuple[str, ...]:
        return ("show", task.id) if finder.turn is None else ("show", task.id, str(finder.turn))

    def forked(task: TaskSummary) -> tuple[str, ...]:
        return ("resume", task.id, "--at-turn", str(finder.turn or max(1, task.turns)))

    actions: dict[Callable[[Any], None], tuple[str, ...]] = {
        move(-1): ("up", "c-p"),
        move(1): ("down", "c-n"),
        move(-10): ("pageup",),
        move(10): ("pagedown",),
        leave(shown): ("enter",),
        leave(lambda task: ("resume", task.id)): ("c-r",),
        leave(forked): ("c-f",),
        copy(lambda task: task.id): ("c-y",),
        copy(lambda task: f"rawko resume {task.id}"): ("c-t",),
        lambda event: event.app.exit(result=None): ("escape", "c-c", "c-g", "c-d"),
    }
    for act, keys in actions.items():
        for key in keys:
            bindings.add(key, eager=True)(act)
