"""Places of findings: agreement with sentences of our own by kind, and the rules one by one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from radweave.core.errors import InputError
from radweave.labels.places import Located, Place, get_place_labeler, merge_places, place_name, sides_named

HERE = Path(__file__).parent
KINDS = ("finding", "side", "zone", "severity")
ZONES = {"l": "left", "r": "right"}


def stated(words: str) -> tuple[str, frozenset[Place], str | None]:
    """Finding, places and severity of one entry: "Atelectasis: l lower + r lower / mild"."""
    name, _, rest = words.strip().partition(":")
    places, _, severity = rest.partition("/")
    result = set()
    for place in places.split("+"):
        side, _, zone = place.strip().partition(" ")
        if side not in ZONES and side != "-":
            side, zone = "", place.strip()
        result.add(cast(Place, Place(cast(Any, ZONES.get(side)), cast(Any, zone or None))))
    return name, frozenset(result - {Place(None, None)}), severity.strip() or None


def sentences(name: str) -> list[tuple[str, list[tuple[str, frozenset[Place], str | None]]]]:
    lines = (HERE / f"places_{name}.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.partition("=>") for line in lines if "=>" in line]
    return [(text.strip(), [stated(entry) for entry in given.split(";") if entry.strip()]) for text, _, given in rows]


def read(name: str, text: str) -> list[Located]:
    return [one for located in get_place_labeler(name).label([text])[0].values() for one in located]


def facts(kind: str, rows: list[tuple[str, frozenset[Place], str | None]]) -> list[tuple[str, ...]]:
    """What a sentence says of a kind, sorted; several findings of a class each count."""
    if kind == "finding":
        return sorted((name,) for name, _, _ in rows)
    if kind == "severity":
        return sorted((name, severity or "") for name, _, severity in rows)
    values = [(name, {getattr(place, kind) or "" for place in places} - {""}) for name, places, _ in rows]
    return sorted((name, *sorted(own)) for name, own in values)


@pytest.mark.parametrize("name", ["chexpert14", "ct18"])
def test_agreement_with_our_sentences(name: str) -> None:
    rows = sentences(name)
    agree = dict.fromkeys((*KINDS, "all"), 0)
    for text, given in rows:
        found = [(one.name, one.places, one.severity) for one in read(name, text)]
        same = {kind: facts(kind, given) == facts(kind, found) for kind in KINDS}
        same["all"] = sorted(map(str, [(n, sorted(map(str, p)), s) for n, p, s in given])) == sorted(
            map(str, [(n, sorted(map(str, p)), s) for n, p, s in found])
        )
        for kind, equal in same.items():
            agree[kind] += equal
        if not same["all"]:
            print(text, given, found, sep="\n    ")
    print(name, len(rows), {kind: round(count / len(rows), 3) for kind, count in agree.items()})
    assert min(agree.values()) >= len(rows) - 1


def test_there_are_200_sentences() -> None:
    assert len({text for name in ("chexpert14", "ct18") for text, _ in sentences(name)}) >= 200


@pytest.mark.parametrize("name", ["chexpert14", "ct18"])
def test_a_mirrored_sentence_has_the_other_sides(name: str) -> None:
    other = {"left": "right", "right": "left"}
    mirrored = 0
    for text, _ in sentences(name):
        if re.search("(?i)lingul|middle|rul|rml|lll|anterior descending", text):
            continue
        swapped = re.sub("left|right", lambda match: other[match.group()], text.lower())
        expected = [{(other.get(p.side or ""), p.zone) for p in one.places} for one in read(name, text)]
        assert [{tuple(p) for p in one.places} for one in read(name, swapped)] == expected
        mirrored += bool(expected)
    assert mirrored > 40


def test_places_do_not_depend_on_case_or_on_other_texts() -> None:
    texts = [text for text, _ in sentences("chexpert14")]
    labeler = get_place_labeler("chexpert14")
    assert labeler.label([text.upper() for text in texts]) == labeler.label(texts)
    assert labeler.label(texts[::-1])[::-1] == labeler.label(texts)


def test_spans_are_those_of_the_text() -> None:
    text = "No edema. Small left effusion."
    (effusion,) = get_place_labeler("chexpert14").label([text])[0]["Pleural Effusion"]
    assert text[slice(*effusion.span)] == "effusion"
    assert effusion.sides == {"left"}


def test_a_denied_finding_has_no_place() -> None:
    located = get_place_labeler("chexpert14").label(["No left effusion. The right effusion has resolved."])[0]
    assert set(located) == set(get_place_labeler("chexpert14").classes)
    assert not any(located.values())


@pytest.mark.parametrize(
    ("places", "merged"),
    [
        ([Place("left", None), Place(None, "lower")], {Place("left", "lower")}),
        ([Place("left", "lower"), Place("left", None)], {Place("left", "lower")}),
        ([Place("left", "lower"), Place("right", None)], {Place("left", "lower"), Place("right", None)}),
        ([Place("left", "lower"), Place(None, "upper")], {Place("left", "lower"), Place("left", "upper")}),
        ([Place(None, "lower")], {Place(None, "lower")}),
        ([], set()),
    ],
)
def test_places_complete_one_another(places: list[Place], merged: set[Place]) -> None:
    assert merge_places(places) == merged


def test_names_of_places() -> None:
    assert place_name(Place("right", "mid"), "xray") == "right mid zone"
    assert place_name(Place("right", "mid"), "ct") == "right middle lobe"
    assert place_name(Place("left", "mid"), "ct") == "lingula"
    assert place_name(Place("left", "upper"), "ct") == "left upper lobe"
    assert place_name(Place("left", "pleura"), "xray") == "left pleura"
    assert place_name(Place(None, None), "xray") == ""


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("the lingula", {"left"}),
        ("both bases", {"left", "right"}),
        ("Left ventricle", set()),
        ("A drain was left in place", set()),
        ("the right middle lobe", {"right"}),
        ("Both opacity and effusion", set()),
    ],
)
def test_sides_of_words(text: str, sides: set[str]) -> None:
    assert sides_named(text) == sides


@pytest.mark.parametrize("texts", ["one string", [1]])
def test_texts_that_are_none_are_refused(texts: Any) -> None:
    with pytest.raises(InputError):
        get_place_labeler("chexpert14").label(texts)


def test_an_unknown_label_set_is_refused() -> None:
    with pytest.raises(InputError, match="no labeler of this name"):
        get_place_labeler("places")
