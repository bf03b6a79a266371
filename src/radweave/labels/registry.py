"""Labelers by the name of their label set."""

from __future__ import annotations

from functools import cache

from radweave.errors import InputError
from radweave.labels.labeler import Labeler
from radweave.labels.rules import RuleLabeler

RULE_BASED = ("chexpert14", "ct18", "nih14")


def get_labeler(name: str) -> Labeler:
    """The rule-based labeler of a label set: "chexpert14", "ct18" or "nih14".

    Raises:
        InputError: for any other name.
    """
    if name not in RULE_BASED:
        raise InputError("no labeler of this name", field="ontology", got=repr(name), expected=" or ".join(RULE_BASED))
    return _rule_labeler(name)


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
