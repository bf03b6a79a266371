"""Phantom reports state their labels in words that the labelers understand."""

from __future__ import annotations

import numpy as np
import pytest

from radweave.labels import get_labeler
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
