"""Phantom reports state their labels in words that the labelers understand."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.labels import get_labeler
from radweave.labels.places import LUNG_ZONES, get_place_labeler
from radweave.phantom.ct_report import write_ct_report
from radweave.phantom.report import write_report
from radweave.phantom.study import course_of, slot_of

STUDIES = 400


@pytest.mark.parametrize("part", ["findings", "both"])
@pytest.mark.parametrize(("modality", "ontology"), [("xray", "chexpert14"), ("ct", "ct18")])
def test_labels_of_phantom_reports_are_read_back(modality: str, ontology: str, part: str) -> None:
    labeler = get_labeler(ontology)
    write = write_report if modality == "xray" else write_ct_report
    texts, truths = [], []
    for index in range(STUDIES):
        slot = slot_of(5, index)
        _, findings = course_of(5, slot, "long-tail", modality)  # type: ignore[arg-type]
        written = write(findings, np.random.default_rng([5, index]), has_prior=slot.visit > 0)
        texts.append(written.findings if part == "findings" else f"{written.findings} {written.impression}")
        truths.append(written.labels)
    pairs = [
        (truth[name], mention.state)
        for truth, labels in zip(truths, labeler.label(texts), strict=True)
        for name, mention in labels.items()
    ]
    # The two are written apart: a rare turn of phrase may be read otherwise, one pair in a hundred.
    assert sum(truth is state for truth, state in pairs) / len(pairs) >= 0.99


@pytest.mark.parametrize(("modality", "ontology"), [("xray", "chexpert14"), ("ct", "ct18")])
def test_places_of_phantom_findings_are_read_back(modality: str, ontology: str) -> None:
    labeler = get_place_labeler(ontology)
    write = write_report if modality == "xray" else write_ct_report
    zoned = 0
    for index in range(100):
        slot = slot_of(9, index)
        _, findings = course_of(9, slot, "balanced", modality)  # type: ignore[arg-type]
        written = write(findings, np.random.default_rng(index), has_prior=slot.visit > 0)
        for finding, sentence in zip(findings, written.sentences, strict=True):
            if not finding.visible or finding.name in ("Support Devices", "Medical material"):
                continue
            located = labeler.label([sentence])[0][finding.name]
            # An edema is on both sides, and a pneumothorax at the apex, whether the sentence says so or not.
            if finding.name != "Edema":
                assert {side for one in located for side in one.sides} == set(finding.sides), sentence
            if finding.zone in LUNG_ZONES and (finding.name != "Pneumothorax" or "apical" in sentence):
                assert {place.zone for one in located for place in one.places} == {finding.zone}, sentence
                zoned += 1
    assert zoned > 50
