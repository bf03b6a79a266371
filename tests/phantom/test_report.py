"""Reports of the phantom: what they say is what their labels say, in words a rule labeler reads alike."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest

from radweave.core.ontology import CHEXPERT14, CT18
from radweave.core.study import LabelState
from radweave.labels import get_labeler
from radweave.phantom.ct_report import REGIONS, write_ct_report
from radweave.phantom.findings import (
    COURSES,
    DEVICES,
    HABITS,
    SEVERITIES,
    Finding,
    FindingSide,
    Turnover,
    Zone,
    class_rates,
)
from radweave.phantom.report import NEG, POS, UNC, write_report
from radweave.phantom.study import Slot, course_of, slot_of

Written = tuple[str, dict[str, LabelState], tuple[Finding, ...]]


def written(modality: Literal["xray", "ct"], count: int, turnover: Turnover = "low") -> list[Written]:
    """Findings and impression, the labels, and what is there."""
    out: list[Written] = []
    for index in range(count):
        slot = slot_of(21, index)
        _, findings = course_of(21, slot, "balanced", modality, turnover)
        write = write_report if modality == "xray" else write_ct_report
        report = write(findings, np.random.default_rng([21, slot.patient, slot.visit]), has_prior=slot.visit > 0)
        out.append((f"{report.findings} {report.impression}", report.labels, findings))
    return out


@pytest.mark.parametrize("turnover", ["low", "real"])
@pytest.mark.parametrize(("modality", "ontology"), [("xray", "chexpert14"), ("ct", "ct18")])
def test_rule_labels_read_from_the_reports_equal_the_truth(
    modality: Literal["xray", "ct"], ontology: str, turnover: Turnover
) -> None:
    reports = written(modality, 250, turnover)
    read = get_labeler(ontology).label([text for text, _, _ in reports])
    pairs = [
        (labels[name], mentions[name].state)
        for (_, labels, _), mentions in zip(reports, read, strict=True)
        for name in labels
    ]
    agreement = sum(a == b for a, b in pairs) / len(pairs)
    assert agreement >= 0.99
    states = Counter(state for state, _ in pairs)
    assert all(states[state] > 10 for state in (POS, NEG, UNC))


def test_no_report_contradicts_itself() -> None:
    stated = 0
    for text, labels, _ in written("xray", 250):
        for name, denial in (("Consolidation", "o focal consolidation"), ("Edema", "consolidation or edema")):
            if labels[name] in (POS, UNC):
                stated += 1
                assert denial not in text, text
    assert stated > 20


def test_anatomy_differs_by_patient_only() -> None:
    def built(patient: int) -> set[str]:
        return {str(course_of(3, Slot(patient, visit), "balanced")[0]) for visit in range(2)}

    assert [len(built(patient)) for patient in (1, 2)] == [1, 1]
    assert built(1) != built(2)


def test_findings_persist_between_visits() -> None:
    courses = [tuple(course_of(3, Slot(patient, visit), "balanced")[1] for visit in range(3)) for patient in range(12)]
    assert all(any(course[visit] != course[visit + 1] for course in courses) for visit in range(2))


@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_a_later_visit_follows_the_trend_that_it_states(modality: Literal["xray", "ct"]) -> None:
    """Severity and size move with the trend and with it alone; nodules and lasting findings never resolve."""
    level, seen = ("mild", "moderate", "severe").index, Counter[str]()
    for patient in range(120):
        before, after = (course_of(3, Slot(patient, visit), "balanced", modality)[1] for visit in range(2))
        for old in before:
            (new,) = (one for one in after if one.seed == old.seed)
            seen[new.trend] += 1
            moved = {"increased": 1, "decreased": -1}.get(new.trend, 0)
            sizes = HABITS[old.name].sizes_mm if old.name in HABITS else None
            if old.name in ("Lung Lesion", "Lung nodule"):
                assert new.trend != "resolved"
                assert np.sign(new.size_mm - old.size_mm) == moved
            else:
                assert level(new.severity) - level(old.severity) == moved
                assert sizes is None or np.sign(new.size_mm - old.size_mm) == moved
            assert new.trend != "resolved" or not (old.name in HABITS and HABITS[old.name].lasting)
            assert (new.side, new.zone, new.count, new.certainty) == (old.side, old.zone, old.count, old.certainty)
    assert min(seen[trend] for trend in ("unchanged", "increased", "decreased", "resolved")) >= 5


COURSE_OF_LOW = {
    "xray": "d95f019c3f36febb2e8b872cd366540e5feb47088c5f51e0acb9f19c6211ceae",
    "ct": "8e258d20c17881bada658cbf695ac945c6a57554ae8642b95a1ccc431d322fdf",
}
"""SHA-256 of 800 findings' lists, drawn before there was an option of turnover."""


@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_the_low_turnover_is_that_of_older_phantoms(modality: Literal["xray", "ct"]) -> None:
    digest = hashlib.sha256()
    for prevalence in ("balanced", "long-tail"):
        for index in range(400):
            findings = course_of(5, slot_of(5, index), prevalence, modality)[1]  # type: ignore[arg-type]
            digest.update(repr([finding.model_dump() for finding in findings]).encode())
    assert digest.hexdigest() == COURSE_OF_LOW[modality]


def visits(modality: Literal["xray", "ct"], turnover: Turnover, patients: int = 900) -> list[list[tuple[Finding, ...]]]:
    return [
        [course_of(7, Slot(patient, visit), "balanced", modality, turnover)[1] for visit in range(3)]
        for patient in range(patients)
    ]


@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_real_turnover_has_the_chances_of_its_table(modality: Literal["xray", "ct"]) -> None:
    """Shares of findings that go, and of patients who have a class, within four standard deviations."""
    trends: dict[str, Counter[str]] = {}
    having: list[Counter[str]] = [Counter(), Counter(), Counter()]
    courses = visits(modality, "real")
    for course in courses:
        for visit, findings in enumerate(course):
            having[visit].update({finding.name for finding in findings if finding.visible})
        for old in course[0]:
            (new,) = (one for one in course[1] if one.seed == old.seed)
            if old.kind not in ("pacemaker", "sternal wires"):
                trends.setdefault(old.name, Counter())[new.trend] += 1
            moved = {"increased": 1, "decreased": -1}.get(new.trend, 0)
            if old.name in ("Lung Lesion", "Lung nodule"):
                assert np.sign(new.size_mm - old.size_mm) == moved
            else:
                assert SEVERITIES.index(new.severity) - SEVERITIES.index(old.severity) == moved
    assert set(trends) == set(class_rates(modality, "balanced"))
    for name, seen in trends.items():
        total, chances = sum(seen.values()), COURSES[name]
        assert abs(seen["resolved"] / total - chances.resolved) <= 4 * (0.25 / total) ** 0.5, name
        assert (seen["increased"] > 0) == (chances.larger > 0), name
        assert (seen["decreased"] > 0) == (chances.smaller > 0), name
    for name in set(trends) - set(DEVICES):
        first, last = (having[visit][name] / len(courses) for visit in (0, 2))
        assert abs(first - last) <= 4 * (2 * 0.16 * 0.84 / len(courses)) ** 0.5, name


@pytest.mark.long
def test_a_new_nodule_often_goes_again() -> None:
    gone = Counter()
    for course in visits("ct", "real"):
        for old in course[1]:
            if old.name == "Lung nodule" and old.visible:
                (new,) = (one for one in course[2] if one.seed == old.seed)
                gone[old.trend == "new", new.trend == "resolved"] += 1
    shares = [gone[new, True] / (gone[new, True] + gone[new, False]) for new in (True, False)]
    assert gone[True, True] + gone[True, False] >= 10
    assert shares[0] > 0.3 > shares[1]


@pytest.mark.parametrize("modality", ["xray", "ct"])
def test_a_copy_of_the_prior_s_report_is_worth_less_the_more_changes(modality: Literal["xray", "ct"]) -> None:
    def kept(turnover: Turnover) -> float:
        """F1 of the classes of a visit for those of the next."""
        same = both = 0
        for course in visits(modality, turnover, 200):
            for before, after in pairwise(course):
                there = [{finding.name for finding in findings if finding.visible} for findings in (before, after)]
                same += 2 * len(there[0] & there[1])
                both += len(there[0]) + len(there[1])
        return same / both

    none, low, real = (kept(turnover) for turnover in ("none", "low", "real"))
    assert none == 1.0
    assert low > 0.8
    assert real < {"xray": 0.7, "ct": 0.8}[modality]


@pytest.mark.parametrize(
    ("side", "zone", "place"),
    [
        ("right", "mid", "right middle lobe"),
        ("left", "mid", "lingula"),
        ("right", "upper", "right upper lobe"),
        ("left", "lower", "left lower lobe"),
        ("right", "none", "right lung"),
        ("bilateral", "mid", "both mid zones"),
        ("bilateral", "diffuse", "both lungs"),
    ],
)
def test_a_scan_s_report_names_the_lobe_of_the_finding(side: FindingSide, zone: Zone, place: str) -> None:
    finding = Finding(name="Consolidation", kind="typical", side=side, zone=zone)
    assert place in write_ct_report((finding,), np.random.default_rng(0), has_prior=False).findings


@pytest.mark.parametrize(("modality", "classes"), [("xray", CHEXPERT14), ("ct", CT18)])
def test_every_class_is_positive_somewhere(modality: Literal["xray", "ct"], classes: tuple[str, ...]) -> None:
    positive = Counter(name for _, labels, _ in written(modality, 250) for name in classes if labels[name] is POS)
    assert set(positive) == set(classes)


def test_reports_vary_in_words_and_length() -> None:
    for modality in ("xray", "ct"):
        texts = [text for text, _, _ in written(modality, 200)]  # type: ignore[arg-type]
        assert len(set(texts)) > 0.9 * len(texts)
        words = {word.strip(".,") for text in texts for word in text.lower().split()}
        assert len(words) > 120


def test_reports_have_uncertainty_negation_side_and_change() -> None:
    effusion = Finding(name="Pleural Effusion", kind="typical", side="left", severity="severe", size_mm=80)
    pneumonia = Finding(name="Pneumonia", kind="typical", side="right", zone="upper", certainty="possible")
    gone = Finding(name="Pneumothorax", kind="typical", side="right", trend="resolved")
    report = write_report((effusion, pneumonia, gone), np.random.default_rng(0), has_prior=True)
    text = report.findings.lower()
    assert "large left pleural effusion" in text
    assert "pneumothorax has resolved" in text
    assert report.labels["Pleural Effusion"] is POS
    assert report.labels["Pneumonia"] is UNC
    assert report.labels["Pneumothorax"] is NEG
    assert report.labels["No Finding"] is LabelState.BLANK
    grown = effusion.model_copy(update={"trend": "increased"})
    after = write_report((grown,), np.random.default_rng(1), has_prior=True)
    assert "increased" in after.findings or "larger" in after.findings
    assert report.comparison != "None."


def test_a_finding_alone_gives_no_other_positive_class() -> None:
    for name in CHEXPERT14[:-1]:  # without No Finding
        finding = Finding(
            name=name,
            kind="nodule" if name == "Lung Lesion" else "pacemaker" if name == "Support Devices" else "thickening",
            side="midline" if name in ("Cardiomegaly", "Enlarged Cardiomediastinum") else "right",
            zone="lower",
            size_mm=20,
        )
        for seed in range(8):
            labels = write_report((finding,), np.random.default_rng(seed), has_prior=False).labels
            also = {"Pneumonia": {"Lung Opacity"}, "Edema": {"Lung Opacity"}, "Support Devices": {"No Finding"}}
            assert {c for c, state in labels.items() if state is POS} <= {name} | also.get(name, set())


def test_ct_regions_come_in_order() -> None:
    finding = Finding(name="Pleural effusion", kind="typical", side="right", severity="mild", size_mm=20)
    report = write_ct_report((finding,), np.random.default_rng(3), has_prior=False)
    assert list(report.regions) == [region for region in REGIONS if region in report.regions]
    assert "effusion" in report.regions["pleura"]
