"""The terms on which the rows of a benchmark's table drafted, and which of them are not equal.

A method that drafts by other thresholds, from more candidates, with more encoders or with the earlier study beside it
has an advantage that is not its idea. A table of methods therefore names every term that differs, every option of
decoding among them, and is not made of rows whose terms are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from radweave.core.config import from_yaml, override
from radweave.core.errors import InputError
from radweave.engine.run_folder import read_card_alone
from radweave.methods import load_method
from radweave.methods.experiment import Experiment
from radweave.metrics.tables import DASH
from radweave.nn.decoding import DecodingConfig

Terms = Mapping[str, str]
"""Name of a term -> its value in a row; a dash where the row has no such term."""


def read_experiment(folder: Path) -> Experiment:
    """The configuration of a run, without its model."""
    presets = load_method(read_card_alone(folder).method).PRESETS
    experiment: Experiment = from_yaml(type(presets["tiny"]()), folder / "config.yaml")
    return experiment


BY_UTILITY, OWN = "by utility", "own decoder"
"""Writers of the drafts of a row."""
PRIOR_READ: Mapping[str, str] = {"none": "no", "report": "its report", "image": "its image", "both": "report and image"}
"""Value of ``expected_utility.prior`` -> the part of the earlier study that drafts by utility read."""
UNLEARNED = "not used, too few to learn from"
"""In place of that part where drafts warn that the prior was not used."""
_STATED: Mapping[str, bool | set[str]] = {
    "kind": True,
    "num_beams": True,
    "expected_utility": {"thresholds", "consistent", "own", "samples", "further_findings", "prior"},
}
"""Options of decoding that other terms state."""


def _options(decoding: DecodingConfig, *, by_utility: bool) -> Terms:
    """Every other option of decoding by its name; those of expected utility and of sampling only where they act."""
    values = decoding.model_dump(exclude=_STATED)
    utility = values.pop("expected_utility")
    if by_utility:
        values |= {f"expected_utility.{name}": value for name, value in utility.items()}
    elif not decoding.do_sample:
        del values["temperature"], values["top_p"]
    return {name: str(value) for name, value in values.items()}


_DEFAULTS = _options(DecodingConfig(), by_utility=True)


def terms_of(
    experiment: Experiment,
    decoding: Sequence[str] = (),
    others: Sequence[Experiment] = (),
    evidence: Mapping[str, Any] | None = None,
    *,
    weighed: bool = False,
    unused: bool = False,
) -> Terms:
    """The terms of a row that drafts with this configuration and with these options of decoding.

    ``others`` are configurations of the runs that are averaged with it. ``evidence`` is that of a draft of the row: it
    says on which studies its probabilities were calibrated, and if the method wrote reports of its own; ``weighed``:
    these were calibrated as evidence of findings. ``unused``: nothing was learned of priors, and drafts are as without.
    """
    options = override(experiment.decoding, decoding)
    utility, by_utility = options.expected_utility, options.kind == "expected_utility"
    evidence = {"own_reports": {}} if evidence is None else evidence
    draws = utility.own and "own_reports" in evidence
    drawn = f"{utility.samples} drawn by the method, and what it recalls" if draws else "training reports alone"
    counted = "evidence of findings" if draws and weighed and not others else "no evidence of findings"
    calibration = evidence.get("calibration")
    calibrated = f"{calibration['studies']} {calibration['split']} studies" if calibration else DASH
    read = PRIOR_READ[utility.prior] if by_utility else "no"
    read = UNLEARNED if unused else read
    return {
        "drafts": BY_UTILITY if by_utility else OWN,
        "beams": str(options.num_beams),
        "thresholds": utility.thresholds if by_utility else DASH,
        "calibrated on": calibrated if by_utility else DASH,
        "consistent": ("yes" if utility.consistent else "no") if by_utility else DASH,
        "candidates": drawn if by_utility else DASH,
        "its own reports": counted if by_utility and draws else DASH,
        "further findings": str(utility.further_findings) if by_utility else DASH,
        "encoders": str(sum(map(_encoders, (experiment, *others)))),
        "classical descriptors": "yes" if any(map(_reads_descriptors, (experiment, *others))) else "no",
        "earlier study": f"read by the method; by utility: {read}" if experiment.data.priors else read,
        "passes over the images": passes(experiment) if _encoders(experiment) else DASH,
        **_options(options, by_utility=by_utility),
    }


def drafted_by(experiment: Experiment, decoding: Sequence[str] = ()) -> str:
    """Writer of a row's drafts: utility, or the method's own decoder with its kind of search."""
    chosen = override(experiment.decoding, decoding)
    if chosen.kind == "expected_utility":
        return BY_UTILITY
    search = "greedy" if chosen.num_beams == 1 else f"{chosen.num_beams} beams"
    return f"{OWN}, {'sampled' if chosen.do_sample else search}"


def passes(experiment: Experiment) -> str:
    """Passes over the training studies that taught the encoder before reports, and those that taught reports."""
    stages, report = experiment.named_stages(), experiment.report_stage
    encoder = next(name for name, record in experiment.model if record is experiment.model.encoder)
    before = [stage.epochs for name, stage in stages.items() if name != report and encoder in stage.trained]
    return f"{sum(before)} for the encoder, {stages[report].epochs} for reports"


UNEQUAL = "NOT equal"
"""Beginning of a sentence on a term that differs."""
_FEW = 3
"""So many rows are listed in any case."""
UNKNOWN = "unknown"
FOREIGN: Terms = {
    "drafts": "by another program",
    **dict.fromkeys(("thresholds", "calibrated on", "consistent", "candidates", "encoders"), UNKNOWN),
    **dict.fromkeys(("classical descriptors", "earlier study", "passes over the images"), UNKNOWN),
}
"""The terms of drafts that come as a file: nothing says how they were made."""


def _encoders(experiment: Experiment) -> int:
    """The number of encoders that look at an image; members of an ensemble count each, classical descriptors not."""
    if _is_descriptors(experiment.model.encoder):
        return 0
    return int(getattr(experiment.model, "members", 1)) + int(getattr(experiment.model, "full_member", False))


def _reads_descriptors(experiment: Experiment) -> bool:
    """True if a part of the model is of classical descriptors."""
    return any(_is_descriptors(record) for _, record in experiment.model)


def _is_descriptors(record: Any) -> bool:
    return str(getattr(record, "kind", "")).endswith("descriptors")


def unequal_terms(terms: Mapping[str, Terms], rows: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each term that differs between rows of one table: who has which value.

    Rows with the value of most rows are not listed. Where no value is that of most, or the default is, those with an
    option's default are not.

    Raises:
        InputError: if the terms of a row are not known: such a table would hide what is unequal.
    """
    labels = list(rows)
    for label in labels:
        if label not in terms:
            raise InputError("a table needs the terms of all its rows", field="terms", got=f"none of '{label}'")
    sentences = []
    for name in dict.fromkeys(name for label in labels for name in terms[label]):
        having: dict[str, list[str]] = {}
        for label in labels:
            if (value := terms[label].get(name, DASH)) != DASH:
                having.setdefault(value, []).append(label)
        if len(having) > 1:
            of_most = next((value for value, own in having.items() if len(own) > max(len(labels) / 2, _FEW)), None)
            default = _DEFAULTS.get(name)
            unlisted = default if of_most in (None, default) else None
            groups = [
                f"{value} by default" if value == unlisted else f"{value}: {', '.join(own)}"
                for value, own in having.items()
                if value != of_most or value == unlisted
            ]
            if of_most not in (None, default):
                everyone = sum(map(len, having.values())) == len(labels)
                groups.append(f"{of_most}: {'the others' if everyone else 'the others that have one'}")
            sentences.append(f"{UNEQUAL}, {name}: {'; '.join(groups)}")
    return tuple(sentences)
