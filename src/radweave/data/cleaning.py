"""Named cleanings of report text: what a data set's target texts went through.

A cleaning is written as step names joined by "+", applied from left to right: ``drop_prior_comparison+r2gen_iu``.
The name is stored in ``dataset.json`` and in evaluation protocols, because cleaning moves scores more than models do.

The R2Gen family of steps restates, in our own form, what the published code of R2Gen (Chen et al., EMNLP 2020) and
R2GenGPT (Wang et al., 2023) does to a report, quirks included, so that their numbers can be met:

- "1. " is deleted wherever it stands, so "T11. " loses a digit; "2." to "5." turn into a sentence end.
- The character class of the IU rule contains a range from ":" to "[", so ``: ; < = > ? @ [`` go and hyphens stay.
- Empty sentences are kept, and an empty report becomes " .".
- Runs of dots, underscores and blanks shrink by a fixed number of halvings, not to a fixed point.

All functions are pure; none keeps or logs text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from radweave.base.errors import InputError

Cleaner = Callable[[str], str]

_QUOTES_AND_SLASHES = str.maketrans("", "", "\"'/\\")
_PLAIN_PUNCTUATION = ".,?;*!%^&_+()[]{}"
_COLON_TO_BRACKET = ":;<=>?@["
_DELETED = str.maketrans("", "", _PLAIN_PUNCTUATION + _COLON_TO_BRACKET)
_DELETED_COLON_KEPT = str.maketrans("", "", _PLAIN_PUNCTUATION)


def _halve_runs(text: str, mark: str, times: int) -> str:
    """Replace each pair of ``mark`` by one, ``times`` times over."""
    for _ in range(times):
        text = text.replace(mark * 2, mark)
    return text


def _drop_list_numbers(text: str) -> str:
    """Delete "1. "; turn "2. " to "5. " after a blank into a sentence end."""
    text = text.replace("1. ", "")
    for before in (". ", " "):
        for number in "2345":
            text = text.replace(f"{before}{number}. ", ". ")
    return text


def _join_sentences(text: str, deleted: dict[int, int | None]) -> str:
    """Lower-case, split at ". ", delete characters in each sentence, join with " . " and end with " ."."""
    sentences = text.strip().lower().split(". ")
    cleaned = (sentence.translate(_QUOTES_AND_SLASHES).strip().lower().translate(deleted) for sentence in sentences)
    return " . ".join(cleaned) + " ."


def _shrink_mimic_runs(text: str) -> str:
    text = _halve_runs(text.replace("\n", " "), "_", 7)
    return _halve_runs(_halve_runs(text, " ", 6), ".", 8)


def clean_r2gen_iu(text: str) -> str:
    """R2Gen's rule for IU X-Ray (R2GenGPT's is the same)."""
    return _join_sentences(_drop_list_numbers(_halve_runs(text, ".", 3)), _DELETED)


def clean_r2gen_mimic(text: str) -> str:
    """R2Gen's rule for MIMIC-CXR; PromptMRG and CT2Rep use it too."""
    return _join_sentences(_drop_list_numbers(_shrink_mimic_runs(text)), _DELETED)


def clean_r2gengpt_mimic(text: str) -> str:
    """R2GenGPT's rule for MIMIC-CXR: as R2Gen's, but ":" becomes " :" and ``: < = > @`` stay."""
    return _join_sentences(_drop_list_numbers(_shrink_mimic_runs(text)).replace(":", " :"), _DELETED_COLON_KEPT)


_BLANKS = re.compile(r"\s+")
# A sentence ends at . ! or ? before a blank, unless the dot belongs to a list number ("2. Mild ...").
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\b\d\.)(?<!\b\d\d\.)\s+")
# De-identification marks: Open-i writes XXXX, MIMIC-CXR three underscores.
_DEID_MARK = re.compile(r"X{3,}|_{3,}", re.IGNORECASE)
_BLANK_BEFORE_PUNCTUATION = re.compile(r"\s+([.,;:!?)])")
_PRIOR = re.compile(
    r"""\b(?:
      (?:in\s+)?compar(?:ed|ison|ing)\s+(?:to|with)      # compared with an earlier examination
    | as\s+compared
    | (?:prior|previous|earlier|preceding|last)\s+(?:\w+[\s-]+){0,3}
      (?:exam\w*|stud(?:y|ies)|radiograph\w*|film\w*|image\w*|imaging|scan\w*|ct|x-?rays?|chest|report\w*)
    | (?:since|from)\s+(?:the\s+)?(?:prior|previous|last|earlier)
    | interval | unchanged | redemonstrat\w+ | re-?identified
    | (?:again|previously)\s+(?:seen|noted|identified|demonstrated|described|visuali[sz]ed)
    | no\s+(?:significant\s+|substantial\s+)?change | not\s+(?:significantly\s+)?changed
    | (?:has|have)\s+(?:\w+\s+){0,2}(?:increased|decreased|improved|worsened|progressed|resolved|cleared)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def squeeze_blanks(text: str) -> str:
    """Turn every run of white space, line breaks included, into one blank."""
    return _BLANKS.sub(" ", text).strip()


def split_sentences(text: str) -> list[str]:
    """Sentences of a report, blanks squeezed; a list number stays with its sentence."""
    squeezed = squeeze_blanks(text)
    return _SENTENCE_END.split(squeezed) if squeezed else []


def drop_deid_marks(text: str) -> str:
    """Delete de-identification marks ("XXXX", "___") and the blanks they leave; the sentence around them stays."""
    return _BLANK_BEFORE_PUNCTUATION.sub(r"\1", squeeze_blanks(_DEID_MARK.sub(" ", text)))


def drop_deid_sentences(text: str) -> str:
    """Delete every sentence that holds a de-identification mark, since its missing word cannot be learned."""
    return " ".join(s for s in split_sentences(text) if not _DEID_MARK.search(s))


def drop_prior_comparison(text: str) -> str:
    """Delete every sentence that speaks of an earlier examination.

    A model that sees one study cannot know them. A whole sentence goes, with what else it says ("unchanged
    cardiomegaly" loses the cardiomegaly), so use this for targets of single-study models only.
    """
    return " ".join(s for s in split_sentences(text) if not _PRIOR.search(s))


CLEANINGS: Mapping[str, Cleaner] = MappingProxyType(
    {
        "none": lambda text: text,
        "squeeze_blanks": squeeze_blanks,
        "lower": str.lower,
        "drop_deid_marks": drop_deid_marks,
        "drop_deid_sentences": drop_deid_sentences,
        "drop_prior_comparison": drop_prior_comparison,
        "r2gen_iu": clean_r2gen_iu,
        "r2gen_mimic": clean_r2gen_mimic,
        "r2gengpt_mimic": clean_r2gengpt_mimic,
    }
)


def cleaner(name: str) -> Cleaner:
    """The function behind a cleaning's name, such as ``none`` or ``drop_deid_marks+r2gen_iu``.

    Raises:
        InputError: for a step that does not exist; names those that do.
    """
    steps = []
    for step in name.split("+"):
        if step not in CLEANINGS:
            raise InputError("no such cleaning", field="cleaning", got=step, expected=", ".join(CLEANINGS))
        steps.append(CLEANINGS[step])

    def apply(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    return apply
