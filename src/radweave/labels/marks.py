"""De-identification marks: what stands in a published report where words were taken out to protect a patient.

No radiologist wrote them, so that a draft has none: a sentence that holds one is left out of it, whole, since what the
mark stands for is not known.
"""

from __future__ import annotations

import re

from radweave.base.parts import is_parted, parts_of, whole
from radweave.labels.unprompted import whole_sentences

MARK = re.compile(r"x{3,}|_{2,}|\[\*\*.*?\*\*\]", re.IGNORECASE)


def without_marks(text: str) -> tuple[str, list[str]]:
    """The text without its sentences that hold a mark, and those. A text that has none comes back as it is.

    In a report of two parts headings stay, but for that of a part of which nothing is left.
    """
    if not MARK.search(text):
        return text, []
    if is_parted(text):
        each = {name: without_marks(part) for name, part in parts_of(text).items()}
        return whole({name: now for name, (now, _) in each.items()}), [one for _, gone in each.values() for one in gone]
    kept: list[str] = []
    removed: list[str] = []
    for sentence in whole_sentences(text):
        (removed if MARK.search(sentence) else kept).append(sentence)
    # A mark with a full stop in it may lie across two of them.
    now = " ".join(kept)
    return ("", [text]) if MARK.search(now) else (now, removed)
