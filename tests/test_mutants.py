"""The mutants themselves: each still changes what it says it changes."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant[0] for mutant in MUTANTS])
def test_the_text_of_each_mutant_stands_once(mutant: tuple[str, str, str, str, str]) -> None:
    _, file, old, new, _ = mutant
    assert (ROOT / "rawko_state" / file).read_text(encoding="utf-8").count(old) == 1
    assert old != new


def test_no_two_have_one_name() -> None:
    assert len({mutant[0] for mutant in MUTANTS}) == len(MUTANTS)
