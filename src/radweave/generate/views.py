"""Which view each radiograph of a study is: what the user states, what the file says, or else what a rule sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from radweave.base.errors import InputError, printable
from radweave.base.study import View
from radweave.data.loader import view_id
from radweave.data.reading.images import Radiograph
from radweave.data.reading.view_rule import guess_view
from radweave.generate.pictures import Picture

SAY = "state it with --view, in Python views="
GUESSED = f"the file states no view; taken as {{view}} by a rule that was right in 99 % of IU X-Ray; {SAY}"
UNDECIDED = f"the file states no view, and a rule does not tell; {SAY}"
STATED = ("frontal", "lateral", "pa", "ap")
"""What a user can say."""


def stated_view(text: str) -> View:
    """The view a user names.

    Raises:
        InputError: for another word.
    """
    if not isinstance(text, str) or text.lower() not in STATED:
        raise InputError("no such view", field="--view", got=text, expected=f"one of {', '.join(STATED)}")
    return View(text.upper())


def views_for(stated: Sequence[View], count: int) -> Sequence[View | None]:
    """One stated view per image; None where none is.

    Raises:
        InputError: for another number than none, one for all, or one for each.
    """
    if not stated:
        return [None] * count
    if len(stated) not in (1, count):
        raise InputError("give one view for all images, or one for each", field="--view", got=len(stated),
                         expected=f"1 or {count}")  # fmt: skip
    return [*stated] * (count if len(stated) == 1 else 1)


def settle_views(
    pictures: Sequence[Picture], files: Sequence[Path], stated: Sequence[View | None], known: Sequence[int]
) -> tuple[list[Picture], list[str]]:
    """Give every radiograph its view; return the pictures, and what a user should know about it.

    Args:
        known: kinds of views (``view_id``) that the model was trained on. Only those are guessed, since the others mean
            nothing to it.

    Raises:
        InputError: if a view is stated of a scan.
    """
    settled: list[Picture] = []
    warnings: list[str] = []
    for picture, file, view in zip(pictures, files, stated, strict=True):
        if not isinstance(picture, Radiograph):
            if view is not None:
                raise InputError("a scan has no view to state", file=file, field="--view", got=view.value.lower())
            settled.append(picture)
            continue
        if view is not None:
            if view_id(picture.view) not in (view_id(View.UNKNOWN), view_id(view)):
                text = f"the file says {picture.view.value}, taken as {view.value} as stated"
                warnings.append(f"{printable(file.name)}: {text}")
        elif picture.view is View.UNKNOWN and any(kind != view_id(View.UNKNOWN) for kind in known):
            view = guess_view(picture.pixels)
            view = view if view_id(view) in known else View.UNKNOWN
            text = UNDECIDED if view is View.UNKNOWN else GUESSED.format(view=view.value.lower())
            warnings.append(f"{printable(file.name)}: {text}")
        settled.append(picture if view is None else replace(picture, view=view))
    return settled, warnings
