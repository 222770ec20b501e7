"""How unlike a word a value is: random letters follow one another in ways that letters of words and identifiers do not."""

from __future__ import annotations

from typing import Final

# For each pair of small letters, how surprising the second is after the first, in bits. Counted in the Python standard library
# and in this project's documentation, each word at most 30 times.
_BITS: Final = (
    "75449759596344959333677769" "35464789458367469546398948" "38663783594468279563579979" "46652679299477479546488979"
    "47436569798553756234867479" "48664369299477379455498969" "58771854499564579446488997" "28862898398667399564599979"
    "56455659998442459543969695" "38672897574798359748298878" "58751758389495668636695969" "38752799399487379855589948"
    "25862899498657339956599959" "48433538496686469843569979" "66448669696442549354465799" "38763786498398349354598949"
    "78878988798686787558098899" "38552769397656379444568959" "59572875397677559732487969" "38672794399678469345597959"
    "54564569599443649343899999" "27791788399967579878987899" "28753784298694389347876699" "46353596399658639762788459"
    "66564677598543529633876746" "49761797399758479878998763"
)  # fmt: skip
_TABLE: Final = bytes(ord(bits) - 48 for bits in _BITS)
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
UNLIKELY: Final = 4.8
"""Of words and identifiers one in a hundred is above it; of 20 random letters, one in a hundred below."""


def surprise(value: str) -> float:
    """The mean over all pairs of neighbouring letters; 0 if there are fewer than six."""
    total = pairs = 0
    last = ""
    for letter in value[:200].lower():
        if letter in _LETTERS and last in _LETTERS:
            total += _TABLE[(ord(last) - 97) * 26 + ord(letter) - 97]
            pairs += 1
        last = letter
    return total / pairs if pairs >= 6 else 0.0
