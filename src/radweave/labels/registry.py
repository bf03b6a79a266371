"""Labelers by name: a rule-based one per label set, and networks from local weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import get_args

from radweave.core.errors import InputError
from radweave.core.ontology import LABEL_SETS, NETWORKS, LabelSet, sets_for
from radweave.core.study import Modality
from radweave.labels.labeler import Labeler
from radweave.labels.phrases import load_lexicon
from radweave.labels.rules import RuleLabeler

LABELER_OF: Mapping[Modality, str] = MappingProxyType(
    {modality: sets_for(modality)[0].name for modality in get_args(Modality)}
)
"""The rule-based labeler for reports on images of a modality."""


def get_labeler(name: str, *, weights: Path | None = None, device: str = "cpu") -> Labeler:
    """The labeler of this name.

    A label set's own is rule-based and needs nothing. The others are networks, and ``weights`` is the local folder with
    their weights and tokenizer.

    Raises:
        InputError: for any other name, or weights that are missing, unreadable or of another network.
    """
    label_set = label_set_of(name)
    if name == label_set.name:
        return _rule_labeler(label_set)
    if weights is None:
        raise InputError(f"{name} needs its weights", field="weights", got="none", expected="a local folder")
    labeler: Labeler = import_module(f"radweave.labels.{name}").LABELER(weights, device=device)
    return labeler


def label_set_of(name: str) -> LabelSet:
    """The label set that the labeler of this name reads.

    Raises:
        InputError: for a name that no labeler has.
    """
    label_sets: dict[str, LabelSet] = {str(known): label_set for known, label_set in LABEL_SETS.items()}
    label_sets |= NETWORKS
    if name not in label_sets:
        raise InputError(
            "no labeler of this name", field="labeler", got=repr(name), expected=f"one of {', '.join(label_sets)}"
        )
    return label_sets[name]


@cache
def _rule_labeler(label_set: LabelSet) -> RuleLabeler:
    return RuleLabeler(load_lexicon(label_set.name))
