"""rawko search: find tasks by what was asked, said, run or changed."""

from __future__ import annotations

from datetime import datetime

import click

from rawko_state.cli import Page
from rawko_state.cli.history_cmd import FILTERS, OUTPUT, filter_of, filters
from rawko_state.cli.history_search import run
from rawko_state.cli.project import store_of
from rawko_state.store import RELEVANCE, SORTS, TIME


@click.command(
    name="search",
    cls=Page,
    examples="""
    rawko search sso login
    rawko search '"clock skew" (sso OR oauth) NOT saml'
    rawko search 'getUser* file:auth/* status:failed' --turns
    rawko search skew --all-projects
    """,
    headings={"Filter": FILTERS, "Output": OUTPUT},
)
@click.argument("words", metavar="QUERY...", nargs=-1, required=True)
@filters
@click.option("--turns", is_flag=True, help="List every matching turn, not the best one of each task")
@click.option(
    "--sort",
    type=click.Choice([RELEVANCE, TIME, *SORTS]),
    metavar="KEY",
    help=f"{RELEVANCE}, {TIME}, {', '.join(SORTS)}  [default: {RELEVANCE}]",
)
@click.pass_context
def command(
    ctx: click.Context,
    words: tuple[str, ...],
    statuses: tuple[str, ...],
    agent: str | None,
    file: str | None,
    labels: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    limit: int,
    reverse: bool,
    all_projects: bool,
    utc: bool,
    iso: bool,
    form: str | None,
    turns: bool,
    sort: str | None,
) -> None:
    """Find tasks that contain all the words, best first.

    Upper and lower case don't matter. A query can also have OR, NOT, brackets, "phrases", prefix*, and the fields added: removed:
    agent: file: tool: status: label: model: branch: id: after: before: is:pinned. An identifier is found whole and by its parts.
    """
    query = " ".join(words)
    if not query.strip():
        raise click.UsageError("Nothing to search for.", ctx)
    wanted = filter_of(
        ctx, statuses, agent, file, labels, since, until, sort=sort or RELEVANCE, reverse=reverse, limit=limit
    )
    if all_projects:
        from rawko_state.cli import history_everywhere

        history_everywhere.run(ctx, query, wanted, turns=turns, form=form, utc=utc, iso=iso)
    else:
        run(store_of(ctx), query, wanted, turns=turns, form=form)
