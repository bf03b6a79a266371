"""The terms on which the rows of a benchmark's table drafted, and which of them are not equal.

A method that drafts by other thresholds, from more candidates, with more encoders or with the earlier study beside it
has an advantage that is not its idea. A table of methods therefore names every term that differs, and is not made of
rows whose terms are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from radweave.core.config import from_yaml, override
from radweave.core.errors import InputError
from radweave.engine.run_folder import read_card_alone
from radweave.methods import load_method
from radweave.methods.experiment import Experiment
from radweave.metrics.tables import DASH

Terms = Mapping[str, str]
"""Name of a term -> its value in a row; a dash where the row has no such term."""


def read_experiment(folder: Path) -> Experiment:
    """The configuration of a run, without its model."""
    presets = load_method(read_card_alone(folder).method).PRESETS
    experiment: Experiment = from_yaml(type(presets["tiny"]()), folder / "config.yaml")
    return experiment


PRIOR_READ: Mapping[str, str] = {"none": "no", "report": "its report", "image": "its image", "both": "report and image"}
"""Value of ``expected_utility.prior`` -> the part of the earlier study that drafts by utility read."""


def terms_of(experiment: Experiment, decoding: Sequence[str] = (), others: Sequence[Experiment] = ()) -> Terms:
    """The terms of a row that drafts with this configuration and with these options of decoding.

    ``others`` are configurations of the runs that are averaged with it.
    """
    options = override(experiment.decoding, decoding)
    utility, by_utility = options.expected_utility, options.kind == "expected_utility"
    drawn = f"{utility.samples} drawn by the method, and what it recalls"
    read = PRIOR_READ[utility.prior] if by_utility else "no"
    return {
        "drafts": "by utility" if by_utility else "own decoder",
        "beams": DASH if by_utility else str(options.num_beams),
        "thresholds": utility.thresholds if by_utility else DASH,
        "consistent": ("yes" if utility.consistent else "no") if by_utility else DASH,
        "candidates": (drawn if utility.own else "training reports alone") if by_utility else DASH,
        "further findings": str(utility.further_findings) if by_utility else DASH,
        "encoders": str(sum(map(_encoders, (experiment, *others)))),
        "earlier study": f"read by the method; by utility: {read}" if experiment.data.priors else read,
    }


UNKNOWN = "unknown"
FOREIGN: Terms = {
    "drafts": "by another program",
    **dict.fromkeys(("thresholds", "consistent", "candidates", "encoders", "earlier study"), UNKNOWN),
}
"""The terms of drafts that come as a file: nothing says how they were made."""


def _encoders(experiment: Experiment) -> int:
    """The number of encoders that look at an image; members of an ensemble count each."""
    return int(getattr(experiment.model, "members", 1)) + int(getattr(experiment.model, "full_member", False))


def unequal_terms(terms: Mapping[str, Terms], rows: Iterable[str]) -> tuple[str, ...]:
    """A sentence for each term that differs between rows of one table: who has which value.

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
            groups = "; ".join(f"{value}: {', '.join(own)}" for value, own in having.items())
            sentences.append(f"NOT equal, {name}: {groups}")
    return tuple(sentences)
