"""Generated and reference reports, paired by study id, and the file they come from: CSV, JSON or JSON lines.

A row of a pairs file holds ``study_id``, ``hyp`` and ``ref`` or ``refs``. Optional: ``floors`` (name -> text, a
baseline's report for the same study, e.g. ``{"nearest_neighbour": "...", "constant": "..."}``), ``patient_id`` (one
patient's reports are resampled together), ``has_prior`` (false: the study has no earlier one to compare with),
``prior_report`` (the report of the patient's study before, for the floors that copy it and the scores of change),
``labels`` (class -> state, set by hand for the reference), ``modality`` ("xray" or "ct"), ``dataset`` (whose studies
they are, as ``dataset.json`` names it), ``target`` ("both": reports have findings and impression under headings, and
are scored by section too), ``as_written`` (false: sentences may have been taken out of the draft), ``evidence`` (its
lists ``comparisons_removed`` and ``marks_removed`` are counted, its ``class_probabilities`` are scored), ``boxes`` with
``ref_boxes`` (findings marked on one image by the draft and by the reference, as ``core.study.FindingBox``; read where
a row has both). Other keys are ignored. ``Fields`` has the other names of the first three in files.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from radweave.core.config import first_problem
from radweave.core.errors import InputError
from radweave.core.evidence import BY_OWN_DECODER, BY_UTILITY
from radweave.core.study import FindingBox, LabelState, Modality, TargetText
from radweave.data.tables import ID, read_rows

# Names of the fields in the files of other programs.
STUDY_FIELDS = (ID, "id", "uid", "image_id", "Study", "VolumeName")
HYP_FIELDS = (
    "hyp",
    "hypothesis",
    "prediction",
    "model_prediction",
    "generated",
    "generated_report",
    "draft",
    "candidate",
)
REF_FIELDS = ("ref", "refs", "reference", "references", "reference_report", "ground_truth", "gt")
TEXT_FIELDS = ("report", "text", "hyp", "findings", "Report Impression", "Reports", "Report", "impression")
# Characters that a cell of a CSV file cannot hold.
_OBJECTS = ("floors", "labels", "evidence", "boxes", "ref_boxes")
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Fields:
    """The names of the fields with the id, the generated and the reference report; empty ones are found by name."""

    study: str = ""
    hyp: str = ""
    ref: str = ""


BY_NAME = Fields()


def field_of(row: Mapping[str, Any], named: str, known: Sequence[str], what: str, place: Mapping[str, Any]) -> str:
    """The field of a row that the user named, or the first known one that it has.

    Raises:
        InputError: if there is none. The message leaves out the row's own names, which may be a patient's data where a
            table has no header.
    """
    if named:
        if named not in row:
            raise InputError(f"no field '{named}'", got=f"{len(row)} other fields", **place)
        return named
    for name in known:
        if name in row:
            return name
    raise InputError(f"no field for the {what} found; name it by --{what}", expected=", ".join(known), **place)


def pair_row(row: Mapping[str, Any], fields: Fields, path: Path, place: Mapping[str, Any]) -> dict[str, Any]:
    """The row with ``study_id``, ``hyp`` and ``ref`` or ``refs`` under these names; those that it lacks stay away.

    Raises:
        InputError: if a field that was named is not there.
    """
    cells = _from_cells(row) if path.suffix.lower() in (".csv", ".tsv") else dict(row)
    named = dict(cells)
    for standard, chosen, known in (
        (ID, fields.study, STUDY_FIELDS),
        ("hyp", fields.hyp, HYP_FIELDS),
        ("ref", fields.ref, REF_FIELDS),
    ):
        is_named = standard in cells or (standard == "ref" and "refs" in cells)
        if not chosen and (is_named or not any(name in cells for name in known)):
            continue
        value = cells[field_of(cells, chosen, known, standard, place)]
        if standard == "ref":
            named.pop("ref", None)
            named.pop("refs", None)
        named["refs" if standard == "ref" and isinstance(value, list) else standard] = value
    return named


def _from_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a CSV file: cells are texts, and an empty one of what is optional is not there."""
    cells = {name: value for name, value in row.items() if name not in _OBJECTS}
    if "refs" in cells:
        cells.setdefault("ref", cells.pop("refs"))
    for name in ("patient_id", "modality", "has_prior", "prior_report"):
        if not str(cells.get(name, "")).strip():
            cells.pop(name, None)
    if "has_prior" in cells:
        cells["has_prior"] = _TRUTH.get(str(cells["has_prior"]).strip().lower(), cells["has_prior"])
    return cells


# C0, DEL, C1, and the Unicode line and paragraph separators; tab, line feed and carriage return are ordinary blanks.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")


DEFAULT_THRESHOLD = 0.5
"""For drafts without thresholds."""


@dataclass(frozen=True, slots=True)
class Probabilities:
    """Class probabilities of a draft's evidence, and the thresholds from which on the run counts a class as present.

    ``calibrated`` names the classes whose probability is calibrated, on the studies of ``split``. A run that is
    calibrated and has no threshold for a class never counts it as present.
    """

    values: Mapping[str, float]
    thresholds: Mapping[str, float] = field(default_factory=dict)
    calibrated: frozenset[str] = frozenset()
    split: str | None = None

    def threshold(self, name: str) -> float:
        """Least probability at which a class counts as present; infinity for never."""
        return self.thresholds.get(name, math.inf) if self.thresholds else DEFAULT_THRESHOLD


@dataclass(frozen=True, slots=True)
class Pair:
    """One study: what was generated (``hyp``) and what was written (``refs``, at least one), on which ``modality``.

    ``target`` is the text that was to be written, None where nothing says it.
    ``decoder`` is what drafted ("expected utility", "own decoder"), None where nothing says it.
    ``as_written`` is True if ``hyp`` is all that the method wrote, None where nothing says it; ``comparisons_removed``
    and ``marks_removed`` count the sentences that lost a comparison, or were left out for a mark of de-identification.
    """

    study_id: str
    hyp: str
    refs: tuple[str, ...]
    floors: Mapping[str, str] = field(default_factory=dict)
    patient_id: str | None = None
    has_prior: bool | None = None
    prior_report: str | None = None
    labels: Mapping[str, LabelState] | None = None
    modality: Modality | None = None
    dataset: str | None = None
    as_written: bool | None = None
    comparisons_removed: int = 0
    marks_removed: int = 0
    probabilities: Probabilities | None = None
    target: TargetText | None = None
    boxes: tuple[FindingBox, ...] | None = None
    ref_boxes: tuple[FindingBox, ...] | None = None
    decoder: str | None = None


@dataclass(frozen=True, slots=True)
class PairsFile:
    """The pairs of a file, and the lines that were left out by reason (only with ``skip_invalid``)."""

    pairs: tuple[Pair, ...]
    left_out: Mapping[str, int]


def replace_control(text: str) -> str:
    """Put a blank for each control character; they would shift lines in a line-based scorer."""
    return _CONTROL.sub(" ", text)


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


def check_text(value: Any, field_name: str, **place: Any) -> str:
    """Return ``value`` if it is usable text.

    Raises:
        InputError: if it is not a string (None and NaN included) or holds a lone surrogate.
    """
    if not isinstance(value, str):
        raise InputError("not a text", field=field_name, got=type(value).__name__, expected="a string", **place)
    if _SURROGATE.search(value):
        raise InputError("holds a lone surrogate, which is no valid text", field=field_name, **place)
    return value


def check_pairs(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Check pairs built in Python: texts, one pair per id, no empty reference.

    Raises:
        InputError: naming the study and the field; also if there are no pairs at all.
    """
    checked = tuple(pairs)
    if not checked:
        raise InputError("no pairs to evaluate", expected="at least one study")
    ids: set[str] = set()
    for pair in checked:
        if not isinstance(pair.study_id, str) or not pair.study_id:
            raise InputError("not a study id", field="study_id", got=type(pair.study_id).__name__)
        if pair.study_id in ids:
            raise InputError("study id comes twice", field="study_id", got=pair.study_id)
        ids.add(pair.study_id)
        place: dict[str, Any] = {"file": f"study {pair.study_id}"}
        check_text(pair.hyp, "hyp", **place)
        refs: Any = pair.refs
        if not isinstance(refs, (tuple, list)) or not refs:
            raise InputError("not a list of references", field="refs", got=type(refs).__name__, **place)
        for ref in pair.refs:
            if not check_text(ref, "refs", **place).strip():
                raise InputError("reference is empty", field="refs", **place)
    return checked


def pair_up(hyps: Mapping[str, str], refs: Mapping[str, str | Sequence[str]]) -> tuple[Pair, ...]:
    """Pair generated with reference reports by id, in the order of the references.

    Raises:
        InputError: if an id is on one side only; nothing is scored on the part that fits.
    """
    missing = [study for study in refs if study not in hyps]
    extra = [study for study in hyps if study not in refs]
    if missing or extra:
        raise InputError(
            "study ids of generated and reference reports differ",
            field="study_id",
            got=f"{len(missing)} without a generated report, {len(extra)} without a reference"
            f" (first: {(missing + extra)[0]})",
            expected="the same ids on both sides",
        )
    return check_pairs(
        Pair(study, hyps[study], (ref,) if isinstance(ref, str) else tuple(ref)) for study, ref in refs.items()
    )


def read_pairs(path: Path, *, skip_invalid: bool = False, fields: Fields = BY_NAME) -> PairsFile:
    """Read a pairs file.

    Args:
        path: ``.csv``, ``.tsv``, ``.json``, or JSON lines under any other name.
        skip_invalid: leave bad lines out and count them by reason, instead of refusing the file. Duplicate ids are
            refused all the same: no line can be said to be the bad one.
        fields: which field has the id, the generated and the reference report; found by name if not given.

    Raises:
        InputError: naming file, line and field.
    """
    pairs: list[Pair] = []
    left_out: Counter[str] = Counter()
    ids: set[str] = set()
    for place, row in read_rows(path):
        try:
            pair = _pair_of(pair_row(row, fields, path, place), place)
        except InputError as error:
            if not skip_invalid:
                raise
            left_out[f"{error.field or 'line'}: {error.reason}"] += 1
            continue
        if pair.study_id in ids:
            raise InputError("study id comes twice", field="study_id", got=pair.study_id, **place)
        ids.add(pair.study_id)
        pairs.append(pair)
    if not pairs:
        raise InputError("holds no usable pair", file=path, expected="rows with study_id, hyp and ref or refs")
    return PairsFile(tuple(pairs), dict(sorted(left_out.items())))


def _pair_of(row: Mapping[str, Any], place: dict[str, Any]) -> Pair:
    for name, option in (("study_id", "--study"), ("hyp", "--hyp")):
        if name not in row:
            raise InputError("field is missing", field=name, expected=f"it, or its name by {option}", **place)
    study_id = row["study_id"]
    if not isinstance(study_id, str) or not study_id.strip():
        raise InputError("not a study id", field="study_id", got=repr(study_id)[:40], expected="a string", **place)
    if ("ref" in row) == ("refs" in row):
        expected = "one of them, or its name by --ref"
        raise InputError("needs either 'ref' or 'refs'", field="ref", expected=expected, **place)
    texts = [row["ref"]] if "ref" in row else row["refs"]
    name = "ref" if "ref" in row else "refs"
    if row[name] is None:
        raise InputError("the study has no reference report; --skip-invalid leaves it out", field=name, **place)
    if not isinstance(texts, list) or not texts:
        raise InputError("not a list of references", field=name, got=type(texts).__name__, **place)
    refs = tuple(check_text(text, name, **place) for text in texts)
    if not all(text.strip() for text in refs):
        raise InputError("reference is empty", field=name, **place)
    has_prior = row.get("has_prior")
    if has_prior is not None and not isinstance(has_prior, bool):
        raise InputError("not true or false", field="has_prior", got=type(has_prior).__name__, **place)
    prior_report = row.get("prior_report")
    if prior_report is not None and not check_text(prior_report, "prior_report", **place).strip():
        prior_report = None
    if prior_report is not None and has_prior is False:
        raise InputError("has a prior's report, and no prior", field="has_prior", got="false", expected="true", **place)
    as_written = row.get("as_written")
    if as_written is not None and not isinstance(as_written, bool):
        got = type(as_written).__name__
        raise InputError("not true or false", field="as_written", got=got, expected="true, false or null", **place)
    for name in ("patient_id", "dataset"):
        if row.get(name) is not None and not isinstance(row[name], str):
            raise InputError("not a text", field=name, got=type(row[name]).__name__, **place)
    boxes, ref_boxes = _boxes_of(row, place)
    return Pair(
        study_id=study_id,
        hyp=check_text(row["hyp"], "hyp", **place),
        refs=refs,
        floors=_floors_of(row.get("floors"), place),
        patient_id=row.get("patient_id"),
        has_prior=has_prior,
        prior_report=prior_report,
        labels=_labels_of(row.get("labels"), place),
        modality=_modality_of(row.get("modality"), place),
        dataset=row.get("dataset"),
        as_written=as_written,
        decoder=_decoder_of(row.get("evidence")),
        comparisons_removed=_removed_of(row.get("evidence"), "comparisons_removed"),
        marks_removed=_removed_of(row.get("evidence"), "marks_removed"),
        probabilities=_probabilities_of(row.get("evidence"), place),
        # Files of others may have a field of this name with something else.
        target=next((target for target in get_args(TargetText) if target == row.get("target")), None),
        boxes=boxes,
        ref_boxes=ref_boxes,
    )


def _boxes_of(
    row: Mapping[str, Any], place: dict[str, Any]
) -> tuple[tuple[FindingBox, ...] | None, tuple[FindingBox, ...] | None]:
    """The boxes of draft and reference; None where a row has not both."""
    if row.get("boxes") is None or row.get("ref_boxes") is None:
        return None, None
    sides = []
    for name in ("boxes", "ref_boxes"):
        if not isinstance(row[name], list):
            raise InputError("not a list of boxes", field=name, got=type(row[name]).__name__, **place)
        try:
            sides.append(tuple(map(FindingBox.model_validate, row[name])))
        except ValidationError as error:
            raise InputError(first_problem(error), field=name, **place) from None
    if len({len(each.box) for side in sides for each in side}) > 1:
        raise InputError("boxes of an image and of a volume", field="boxes", expected="4 numbers each, or 6", **place)
    return sides[0], sides[1]


def _modality_of(value: Any, place: dict[str, Any]) -> Modality | None:
    if value not in (None, *get_args(Modality)):
        expected = " or ".join(get_args(Modality))
        raise InputError("no such modality", field="modality", got=repr(value)[:40], expected=expected, **place)
    modality: Modality | None = value
    return modality


def _removed_of(evidence: Any, name: str) -> int:
    """Number of sentences that ``generate`` changed or left out, in one list; 0 for evidence of another program."""
    removed = evidence.get(name) if isinstance(evidence, dict) else None
    return len(removed) if isinstance(removed, list) else 0


def _decoder_of(evidence: Any) -> str | None:
    """The decoder of a draft, if the evidence names it as ours does."""
    made = evidence.get("decoder") if isinstance(evidence, dict) else None
    kind = made.get("kind") if isinstance(made, dict) else None
    return kind if kind in (BY_UTILITY, BY_OWN_DECODER) else None


def _probabilities_of(evidence: Any, place: dict[str, Any]) -> Probabilities | None:
    """The class probabilities of a draft; None where its evidence has none."""
    probabilities = evidence.get("class_probabilities") if isinstance(evidence, dict) else None
    if not isinstance(probabilities, dict) or not probabilities:
        return None
    values = _shares(probabilities, "evidence.class_probabilities", place)
    made = evidence.get("calibration")
    if not isinstance(made, dict):
        return Probabilities(values)
    calibrated, split = made.get("alike"), made.get("split")
    return Probabilities(
        values,
        _shares(made.get("thresholds") or {}, "evidence.calibration.thresholds", place),
        frozenset(calibrated) if isinstance(calibrated, dict) else frozenset(),
        split if isinstance(split, str) else None,
    )


def _shares(mapping: Any, name: str, place: dict[str, Any]) -> dict[str, float]:
    """Numbers from 0 to 1 by class; those that are null are left out."""
    if not isinstance(mapping, dict):
        raise InputError("not a mapping of class to number", field=name, got=type(mapping).__name__, **place)
    for key, value in mapping.items():
        if value is not None and not (type(value) in (int, float) and 0 <= value <= 1):
            raise InputError(
                "not a probability", field=f"{name}.{key}", got=repr(value)[:40], expected="0 to 1", **place
            )
    return {str(key): float(value) for key, value in mapping.items() if value is not None}


def _floors_of(value: Any, place: dict[str, Any]) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError("not a mapping of baseline name to text", field="floors", got=type(value).__name__, **place)
    return {str(name): check_text(text, f"floors.{name}", **place) for name, text in value.items() if text is not None}


def _labels_of(value: Any, place: dict[str, Any]) -> dict[str, LabelState] | None:
    """Read hand-set labels: state names, or 1 / 0 / -1 / null in the order positive, negative, uncertain, blank."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError("not a mapping of class to state", field="labels", got=type(value).__name__, **place)
    return {str(name): _state_of(state, str(name), place) for name, state in value.items()}


def _state_of(value: Any, name: str, place: dict[str, Any]) -> LabelState:
    numbers = {1: LabelState.POSITIVE, 0: LabelState.NEGATIVE, -1: LabelState.UNCERTAIN}
    if value is None:
        return LabelState.BLANK
    if isinstance(value, str) and value in set(LabelState):
        return LabelState(value)
    if isinstance(value, (int, float)) and value in numbers:
        return numbers[int(value)]
    raise InputError(
        "not a label state",
        field=f"labels.{name}",
        got=repr(value)[:40],
        expected="positive, negative, uncertain, blank, or 1, 0, -1, null",
        **place,
    )
