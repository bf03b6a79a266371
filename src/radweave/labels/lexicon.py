"""How an ontology's words are written down: findings, structures and what is said of them, look-alikes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radweave.base.ontology import LabelSet
from radweave.base.study import LabelState


@dataclass(frozen=True, slots=True)
class Structure:
    """A part of the body that every report names, and the words that make it a finding of a class.

    "Heart size is normal" denies cardiomegaly, "the heart is large" states it, "the heart is stable" gives
    ``unchanged``, and "the heart" alone says nothing. ``abnormal``, ``doubtful`` and ``normal`` are qualities that make
    the class positive, uncertain and negative. Without ``denied_by_normal`` the common words for normal do not deny it:
    an aorta of normal width may well be calcified. ``bare`` is the state where nothing is said of it: "interstitial
    markings" are named when they are seen too well, "normal interstitial markings" are not a finding.
    """

    nouns: tuple[str, ...]
    abnormal: tuple[str, ...]
    normal: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    unchanged: LabelState = LabelState.BLANK
    denied_by_normal: bool = True
    bare: LabelState = LabelState.BLANK


@dataclass(frozen=True, slots=True)
class Terms:
    """Phrases of one class, in the language of ``radweave.labels.phrases``.

    ``findings`` state the class by being mentioned. ``doubtful`` are findings that state it as uncertain; ``hints`` do
    so too, but say nothing where they are denied. ``look_alikes`` cancel every hit they overlap, unless it contains
    them ("pericardial effusion" is no pleural effusion, "pleural or pericardial effusion" is). A sentence that names a
    place ``elsewhere`` and none at ``home`` speaks of something else ("a nodule in the left thyroid lobe").
    """

    findings: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    look_alikes: tuple[str, ...] = ()
    structures: tuple[Structure, ...] = ()
    home: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The words of a label set.

    ``other`` holds findings outside the classes: they count for No Finding where the ontology has it, and as the other
    half of "X or Y". ``not_a_finding`` names classes that leave No Finding alone. ``doubts`` are words that the label
    set's own annotators read as doubt, and others do not. See ``radweave.labels.rules.strongest`` for the last field.
    """

    label_set: LabelSet
    version: str
    terms: Mapping[str, Terms]
    other: tuple[str, ...] = ()
    other_look_alikes: tuple[str, ...] = ()
    not_a_finding: frozenset[str] = frozenset()
    doubts: tuple[str, ...] = ()
    doubt_beats_denial: bool = False

    @property
    def name(self) -> str:
        return self.label_set.name

    @property
    def classes(self) -> tuple[str, ...]:
        return self.label_set.classes
