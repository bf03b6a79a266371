"""The table of the profile (PS3.15 Table E.1-1), and what is done where it lets a choice.

The standard leaves some choices to the definition of the object ("X/Z/D": remove, unless an object of its kind must
have it). They are made so that no object loses what it must have: empty before gone, another value before empty.
Sequences are removed where they would need another value: what an item of ours would say is said of nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal

Action = Literal["remove", "empty", "replace", "uid", "walk"]

_ACTIONS: Final[Mapping[str, Action]] = {
    "X": "remove", "Z": "empty", "X/Z": "empty", "D": "replace", "Z/D": "replace", "X/D": "replace",
    "X/Z/D": "replace", "U": "uid", "X/Z/U*": "walk",
}  # fmt: skip


@lru_cache(maxsize=1)
def table() -> Mapping[int, Action]:
    """Tag -> what is done with it."""
    lines = (files(__package__) / "profile.txt").read_text(encoding="ascii").splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {int(row[0], 16): _ACTIONS[row[1]] for row in rows}
