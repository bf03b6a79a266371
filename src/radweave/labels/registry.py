"""Labelers by name: a rule-based one per label set, and trained ones from local weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from radweave.base.errors import InputError
from radweave.base.study import Modality
from radweave.labels.labeler import Labeler
from radweave.labels.rules import RuleLabeler

RULE_BASED = ("chexpert14", "ct18", "nih14")
TRAINED = ("chexbert", "radbert18")
LABELER_OF: Mapping[Modality, str] = {"xray": "chexpert14", "ct": "ct18"}
"""The rule-based labeler for reports on images of a modality."""


def get_labeler(name: str, *, weights: Path | None = None, device: str = "cpu") -> Labeler:
    """The labeler of this name.

    "chexpert14", "ct18" and "nih14" are rule-based and need nothing. "chexbert" and "radbert18" are networks, and
    ``weights`` is the local folder with their weights and tokenizer.

    Raises:
        InputError: for any other name, or weights that are missing, unreadable or of another network.
    """
    if name in RULE_BASED:
        return _rule_labeler(name)
    if name not in TRAINED:
        known = ", ".join(RULE_BASED + TRAINED)
        raise InputError("no labeler of this name", field="labeler", got=repr(name), expected=f"one of {known}")
    if weights is None:
        raise InputError(f"{name} needs its weights", field="weights", got="none", expected="a local folder")
    if name == "chexbert":
        from radweave.labels.chexbert import CheXbertLabeler

        return CheXbertLabeler(weights, device=device)
    from radweave.labels.radbert import RadBertLabeler

    return RadBertLabeler(weights, device=device)


@cache
def _rule_labeler(name: str) -> RuleLabeler:
    if name == "chexpert14":
        from radweave.labels.chexpert_terms import CHEXPERT14_LEXICON

        return RuleLabeler(CHEXPERT14_LEXICON)
    if name == "nih14":
        from radweave.labels.nih_terms import NIH14_LEXICON

        return RuleLabeler(NIH14_LEXICON)
    from radweave.labels.ct_terms import CT18_LEXICON

    return RuleLabeler(CT18_LEXICON)
