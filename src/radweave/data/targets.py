"""Target texts: cleaning, sections of a report, and the context that a model reads beside the images."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from radweave.core.errors import InputError
from radweave.core.study import LONGEST_TEXT, SECTIONS, Study, TargetText, join_sections, without_headings
from radweave.data.deidentify.texts import Scrubber

# Named cleanings of target texts.
#
# A cleaning is a list of steps joined by "+", applied from left to right: ``drop_prior_comparison+r2gen_iu``.
# The name is stored in ``dataset.json`` and in evaluation protocols, because cleaning moves scores more than models do.
#
# The R2Gen family of steps restates, in our own form, what the published code of R2Gen (Chen et al., EMNLP 2020) and
# R2GenGPT (Wang et al., 2023) does to a report, quirks included, so that their numbers can be met:
#
# - "1. " is deleted everywhere, so "T11. " loses a digit; "2." to "5." turn into a sentence end.
# - The character class of the IU rule contains a range from ":" to "[", so ``: ; < = > ? @ [`` go and hyphens stay.
# - Empty sentences are kept, and an empty report becomes " .".
# - Runs of dots, underscores and blanks shrink by a fixed number of halvings, not to a fixed point.
#
# All functions are pure; none stores or logs text.

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
    """Delete every sentence that refers to an earlier examination.

    A model that reads one study cannot know it. The whole sentence is deleted ("unchanged cardiomegaly" loses the
    cardiomegaly), so use this for targets of single-study models only.
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


class Sectioned(Protocol):
    """A record with findings and impression."""

    @property
    def findings(self) -> str | None: ...
    @property
    def impression(self) -> str | None: ...


def sections_for(target: TargetText) -> tuple[str, ...]:
    """The sections of a target, in order; ``regions`` for texts by region, which are no section."""
    return SECTIONS if target == "both" else tuple(target.split("+"))


def target_of_sections(source: Sectioned, target: TargetText, clean: Cleaner) -> str | None:
    """The sections of the target, cleaned and joined; None if one has no text.

    The sections of ``both`` are cleaned separately, since a cleaning may delete headings; inner headings are deleted.
    """
    texts = {name: (getattr(source, name) or "").strip() for name in sections_for(target)}
    if not all(texts.values()):
        return None
    if target != "both":
        return cleaned(" ".join(texts.values()), clean)
    parts = {name: without_headings(cleaned(text, clean) or "") for name, text in texts.items()}
    return join_sections(parts) if all(parts.values()) else None


def target_of_regions(regions: Mapping[str, str], clean: Cleaner) -> str | None:
    """The texts of a scan's regions in the order of their names, each cleaned; None without any.

        The region 1 is heart: Normal size. The region 2 is lung: Clear lungs. No nodule.

    Source: Reg2RG writes regions so, and its protocol ``hf`` takes the names out before it scores.
    """
    texts = {name: cleaned(text, clean) if (text := regions[name].strip()) else None for name in sorted(regions)}
    named = [(name, text) for name, text in texts.items() if text]
    return " ".join(f"The region {k} is {name}: {text}" for k, (name, text) in enumerate(named, start=1)) or None


def cleaned(text: str, clean: Cleaner) -> str | None:
    """The text after a cleaning; None if only a dot is left."""
    now = clean(text)
    return now if now.strip(" .") else None


class Aim:
    """Replaces the imported report of each study by another target."""

    def __init__(self, target: TargetText, cleaning: str) -> None:
        self.target = target
        try:
            self._clean = cleaner(cleaning)
        except InputError:  # of a mixture
            raise InputError(
                "its sets were cleaned in different ways, so that another text of theirs cannot be",
                field="data.target",
                got=target,
                expected="data.target=as_imported, and sets imported with this --target",
            ) from None

    def __call__(self, study: Study) -> Study:
        """The study with the new target; without a report if a section has no text."""
        if self.target == "regions":
            return study.model_copy(update={"report": target_of_regions(study.regions, self._clean)})
        return study.model_copy(update={"report": target_of_sections(study, self.target, self._clean)})


# Sections of a free-text radiology report by its headings, with rules for reports like those of MIMIC-CXR:
#
# 1. A heading stands at the start of a line, or after a sentence, and ends with a colon. It is one of the names below
# in any case (``Findings:``), or a line start in capitals (``PORTABLE CHEST:``).
# 2. The text before the line FINAL REPORT is a preliminary reading and is dropped, as is a section WET READ.
# 3. Without a section called findings, the text under a heading that names the images ("PA AND LATERAL VIEWS OF THE
# CHEST:") counts as findings; else the paragraphs that follow an indication, comparison or technique.
# 4. Of two sections of one name the last with text counts; an addendum is a section of its own and is ignored.
# 5. "FINDINGS AND IMPRESSION" counts as findings.

_FINDINGS = ("findings", "finding", "findings and impression", "findings/impression", "findings / impression")
_IMPRESSION = ("impression", "impressions", "conclusion", "conclusions", "summary", "opinion")
_INDICATION = (
    "indication",
    "indications",
    "history",
    "clinical history",
    "clinical indication",
    "clinical information",
    "reason for exam",
    "reason for examination",
    "reason for study",
    "reason",
)
_COMPARISON = ("comparison", "comparisons", "comparison exam", "comparison study")
_TECHNIQUE = ("technique", "procedure", "method")
_OTHER = (
    "examination",
    "exam",
    "study",
    "wet read",
    "preliminary report",
    "addendum",
    "recommendation",
    "recommendations",
    "recommendation(s)",
    "notification",
    "notifications",
    "note",
    "final report",
)
_SECTION_OF = {
    **dict.fromkeys(_FINDINGS, "findings"),
    **dict.fromkeys(_IMPRESSION, "impression"),
    **dict.fromkeys(_INDICATION, "indication"),
    **dict.fromkeys(_COMPARISON, "comparison"),
    **dict.fromkeys(_TECHNIQUE, "technique"),
    **dict.fromkeys(_OTHER, "other"),
}
_KNOWN = "|".join(re.escape(name) for name in sorted(_SECTION_OF, key=len, reverse=True))
_HEADING = re.compile(
    rf"""(?:^[ \t]*|(?<=[.!?;])[ \t]+(?=[A-Z]))(?P<known>(?i:{_KNOWN}))[ \t]*:
       | ^[ \t]*(?P<capitals>[A-Z][A-Z0-9 ,/&()'-]{{2,79}}):""",
    re.MULTILINE | re.VERBOSE,
)
_FINAL_REPORT = re.compile(r"^[ \t]*FINAL (?:REPORT|ADDENDUM)[ \t]*:?[ \t]*$", re.MULTILINE)
_NAMES_IMAGES = re.compile(
    r"\b(?:CHEST|THORAX|RADIOGRAPHS?|VIEWS?|X-?RAYS?|PORTABLE|PA|AP|LATERAL|FRONTAL|LUNGS?|HEART)\b"
)
_RULE = re.compile(r"[_=*-]{4,}")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_BLANKS = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Sections:
    """The sections of one report; None for missing and empty ones."""

    findings: str | None = None
    impression: str | None = None
    indication: str | None = None
    comparison: str | None = None
    technique: str | None = None


def has_headings(text: str) -> bool:
    """True if a text has a heading for findings or impression."""
    return any(
        _SECTION_OF.get((m["known"] or "").lower()) in ("findings", "impression") for m in _HEADING.finditer(text)
    )


def parse_sections(text: str) -> Sections:
    """Find the sections of a report; blanks are squeezed, nothing else is changed."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    finals = list(_FINAL_REPORT.finditer(text))
    if finals:
        text = text[finals[-1].end() :]
    sections: dict[str, str] = {}
    untitled: list[str] = []
    about_images: list[str] = []
    for heading, body in _split(text):
        name = _SECTION_OF.get(heading.lower())
        if name in ("indication", "comparison", "technique"):
            first, rest = _first_paragraph(body)
            sections[name] = first or sections.get(name, "")
            untitled += rest
        elif name in ("findings", "impression"):
            sections[name] = _squeeze(body) or sections.get(name, "")
        elif name is None and heading and _NAMES_IMAGES.search(heading):
            about_images.append(_squeeze(body))
    if not sections.get("findings"):
        sections["findings"] = " ".join(part for part in about_images if part) or " ".join(untitled)
    return Sections(**{name: value or None for name, value in sections.items()})


def _split(text: str) -> Iterator[tuple[str, str]]:
    """Yield ``(heading, body)``; the text before the first heading is left out."""
    headings = list(_HEADING.finditer(text))
    for index, match in enumerate(headings):
        end = headings[index + 1].start() if index + 1 < len(headings) else len(text)
        yield (match["known"] or match["capitals"]).strip(), text[match.end() : end]


def _first_paragraph(body: str) -> tuple[str, list[str]]:
    paragraphs = [_squeeze(part) for part in _PARAGRAPH.split(body)]
    paragraphs = [part for part in paragraphs if part]
    return (paragraphs[0], paragraphs[1:]) if paragraphs else ("", [])


def _squeeze(text: str) -> str:
    """One line of text without drawn rules; the three underscores of a de-identified word stay."""
    return squeeze_blanks(_RULE.sub(" ", text))


# Context: the sections known before the report was written, which a model reads beside the images.
#
# No name, date or number of a patient may be in it: ``radweave.data.deidentify.texts`` removes them, and the marks of
# de-identification go too, so that texts of all sources look the same.


InputSection = Literal["indication", "technique", "findings"]


class ContextSource(Protocol):
    """A study with ids and the sections that may be context."""

    @property
    def study_id(self) -> str: ...
    @property
    def patient_id(self) -> str: ...
    @property
    def indication(self) -> str | None: ...
    @property
    def technique(self) -> str | None: ...
    @property
    def findings(self) -> str | None: ...


NO_CONTEXT: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ContextSections:
    """The sections that a model reads as context, in this order; none by default."""

    sections: tuple[InputSection, ...] = ()
    scrubber: Scrubber = field(default_factory=Scrubber)

    def of(self, study: ContextSource) -> str | None:
        """The context of a study of a data set; None without ``sections``."""
        if not self.sections:
            return None
        texts: dict[str, str | None] = {name: getattr(study, name) for name in self.sections}
        return self.text(texts, (study.study_id, study.patient_id))

    def of_texts(self, texts: Mapping[str, str | None], study_id: str, files: Iterable[Path]) -> str | None:
        """The context of a single study that is reported on by itself; None without ``sections``.

        Raises:
            InputError: for a section that is no text, or longer than one of a manifest may be.
        """
        for name, text in texts.items():
            if text is not None and (not isinstance(text, str) or len(text) > LONGEST_TEXT):
                got = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
                raise InputError("not a section", field=name, got=got, expected=f"up to {LONGEST_TEXT} characters")
        if not self.sections:
            return None
        return self.text(texts, (study_id,), files if any(texts.get(name) for name in self.sections) else ())

    def text(self, texts: Mapping[str, str | None], ids: Iterable[str] = (), files: Iterable[Path] = ()) -> str:
        """One line for each section with a text, under its name; "" without any.

        ``ids`` and the DICOM headers of ``files`` name the patient.
        """
        scrub = self.scrubber.study(ids, files)
        scrubbed = {name: drop_deid_marks(scrub(texts.get(name) or "")).lstrip(" -,.;:") for name in self.sections}
        return "".join(f"{name.capitalize()}: {text}\n" for name, text in scrubbed.items() if text)


def refuse_target_in_context(sections: Iterable[str], target: str) -> None:
    """Refuse findings as context, unless the target is the impression.

    Raises:
        InputError: naming the field.
    """
    if "findings" in sections and target != "impression":
        raise InputError(
            "findings would be both context and target",
            field="data.input_sections",
            got=f"findings, for the text {target}",
            expected="data.target=impression, or other sections",
        )
