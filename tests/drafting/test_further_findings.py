"""Drafts that take up findings beside their own: stated where that pays off, sourced, and nothing denied."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from radweave.core.evidence import OwnReports
from radweave.core.study import LabelState, has_both_sections
from radweave.drafting.calibration import ClassCalibration, Reliability, RunCalibration
from radweave.drafting.candidates import (
    CandidateOptions,
    CandidatePool,
    affirmed_classes,
    build_candidates,
    candidate_options,
    utility_options,
)
from radweave.drafting.choice import Choice
from radweave.drafting.smoothers import Evidence
from radweave.drafting.store import DraftingFacts, DraftingStore, labels_tensor
from radweave.drafting.writer import FindingSentences, UtilityDraft, UtilityWriter
from radweave.labels import get_labeler
from radweave.labels.text import split_sentences
from radweave.methods import resolve
from radweave.nn.decoding import ExpectedUtilityConfig
from radweave.nn.memory.bank import Bank

LABELER = get_labeler("chexpert14")
CLASSES = LABELER.classes
NORMAL = "The heart is normal in size. The lungs are clear. No pleural effusion. No pneumothorax. No acute fracture."
REPORTS = [
    NORMAL,
    "There is cardiomegaly. The lungs are clear. No pleural effusion. No pneumothorax.",
    "The heart is normal in size. There is a small right pleural effusion. No pneumothorax.",
    "The heart is normal in size. There is a left basilar opacity. No pleural effusion.",
    "The heart is normal in size. The lungs are clear. There is a small left pneumothorax.",
]
FOUR = ("Cardiomegaly", "Lung Opacity", "Pleural Effusion", "Pneumothorax")
NONE = np.zeros(len(REPORTS), dtype=bool)
SHOWN = Reliability(said=0.5, seen=0.5, count=10, low=0.0)
CURVE = ClassCalibration(slope=1.0, offset=0.0, threshold=0.95, positives=5, reliability=(SHOWN,))
CALIBRATION = RunCalibration(
    source="stack", split="train", studies=10, threshold=0.2, classes=dict.fromkeys(CLASSES, CURVE)
)


def store(reports: list[str] = REPORTS) -> DraftingStore:
    config = ExpectedUtilityConfig()
    pool = CandidatePool.build(reports, LABELER, config)
    facts = DraftingFacts(
        classes=CLASSES, label_set="chexpert14", source="stack", wording=utility_options(config),
        candidates=candidate_options(config),
    )  # fmt: skip
    rows = tuple({"study_id": f"s{row}", "patient": f"p{row}", "text": text} for row, text in enumerate(reports))
    labels = labels_tensor(affirmed_classes(reports, LABELER))
    return DraftingStore(Bank({"labels": labels}, rows), facts, pool.candidates, pool.asserts)


def evidence(*likely: str) -> Evidence:
    """Sure of these classes, and that no other is there."""
    return Evidence(np.array([8.0 if name in likely else -8.0 for name in CLASSES]), np.full(len(REPORTS), 0.2))


def drafted(
    *likely: str, most: int, barred: NDArray[np.bool_] = NONE, proposed: Sequence[str] = (), **options: object
) -> UtilityDraft:
    config = ExpectedUtilityConfig.model_validate({"further_findings": most, "unsupported_places": "keep", **options})
    return UtilityWriter(store(), CALIBRATION, config).write(evidence(*likely), barred, OwnReports(tuple(proposed)))


def asserted(draft: UtilityDraft) -> set[str]:
    return {*draft.evidence["expected_utility"]["asserted"]}


def test_as_many_findings_are_taken_up_as_pay_off_and_are_allowed() -> None:
    assert len(asserted(drafted(*FOUR, most=0))) == 2
    assert len(asserted(drafted(*FOUR, most=1))) == 3
    assert asserted(drafted(*FOUR, most=6)) == {*FOUR}
    assert asserted(drafted(*FOUR[:3], most=6)) == {*FOUR[:3]}, "the fourth does not pay off"
    assert asserted(drafted(most=6)) == set()


def test_an_added_finding_is_denied_nowhere_and_has_its_source() -> None:
    draft = drafted(*FOUR, most=6)
    assert draft.text == " ".join(row["text"] for row in draft.evidence["sentences"])
    for row in draft.evidence["sentences"]:
        assert row["text"] in split_sentences(REPORTS[int(row["source"]["study_id"][1:])])
        mentions = LABELER.label([row["text"]])[0]
        assert not any(mentions[name].state is LabelState.NEGATIVE for name in FOUR)
        states = any(mentions[name].state is LabelState.POSITIVE for name in FOUR)
        assert row["source"]["kind"] == ("finding" if states else "template")
    assert draft == drafted(*FOUR, most=6)


DENYING = [*REPORTS[:2], REPORTS[2].replace("effusion. No", "effusion without"), *REPORTS[3:]]


def both_said(draft: UtilityDraft) -> set[LabelState]:
    """What the sentences of a draft say of pneumothorax."""
    states = {LABELER.label([row["text"]])[0]["Pneumothorax"].state for row in draft.evidence["sentences"]}
    return states & {LabelState.POSITIVE, LabelState.NEGATIVE}


@pytest.mark.parametrize(("most", "proposed"), [(6, ()), (0, (f"{DENYING[2]} {DENYING[4]}",))])
def test_no_added_sentence_contradicts_the_draft(most: int, proposed: tuple[str, ...]) -> None:
    def draft(*, consistent: bool) -> UtilityDraft:
        config = ExpectedUtilityConfig(
            further_findings=most, consistent=consistent, findings=100.0, cider=0.0, rouge_l=0.0, bleu=0.0
        )
        writer = UtilityWriter(store(DENYING), CALIBRATION, config)
        likely = evidence("Pleural Effusion", "Pneumothorax")
        likely.scores[CLASSES.index("Pleural Effusion")] = 4.0  # The other is stated first.
        return writer.write(likely, NONE, OwnReports(proposed))

    assert len(both_said(draft(consistent=False))) == 2
    assert len(both_said(draft(consistent=True))) == 1


def test_the_words_of_findings_have_to_pay_for_themselves() -> None:
    free = drafted(*FOUR, most=6, findings=0.01, cider=0.0, rouge_l=0.0, bleu=0.0)
    assert asserted(free) == {*FOUR}
    assert len(asserted(drafted(*FOUR, most=6, findings=0.01, rouge_l=50.0))) < 4
    assert drafted(*FOUR, most=6, findings=0) == drafted(*FOUR, most=0, findings=0), "wording alone decides"


def test_the_patients_own_rows_lend_no_sentence() -> None:
    own = np.arange(len(REPORTS)) == 4
    draft = drafted(*FOUR, most=6, barred=own)
    assert asserted(draft) == {*FOUR[:3]}
    assert "s4" not in {row["source"]["study_id"] for row in draft.evidence["sentences"]}


def test_without_composites_nothing_is_put_together() -> None:
    draft = drafted(*FOUR, most=6, composites=False)
    assert draft.text in REPORTS


def test_written_reports_get_further_findings_with_their_sources() -> None:
    text = "The heart is enlarged with a right effusion. A left basilar opacity is seen. The bones are intact."
    draft = drafted(*FOUR, most=6, proposed=[text], cider=0.0, rouge_l=0.0, bleu=0.0)
    assert asserted(draft) == {*FOUR}
    proposed_draft = drafted(*FOUR, most=0, proposed=[text], cider=0.0, rouge_l=0.0, bleu=0.0)
    assert {row["source"]["kind"] for row in proposed_draft.evidence["sentences"]} == {"decoder"}
    chooser = UtilityWriter(store(), CALIBRATION, ExpectedUtilityConfig(further_findings=2))
    additions = FindingSentences(chooser.chooser.candidates, LABELER, consistent=True)
    written = Choice(
        build_candidates(["The heart is enlarged. No pneumothorax. The lungs are clear."], LABELER)[0], (), 0.0, 0.0
    )
    sentences = tuple(dataclasses.replace(one, kind="decoder", row=-1) for one in written.candidate.sentences)
    written = dataclasses.replace(written, candidate=dataclasses.replace(written.candidate, sentences=sentences))
    (grown,) = additions.variants(written, ["Pneumothorax"], NONE)
    assert [(one.kind, one.row) for one in grown.sentences] == [
        ("decoder", -1), ("finding", 4), ("decoder", -1)
    ]  # fmt: skip
    (opaque,) = additions.variants(written, ["Lung Opacity"], NONE)
    assert "lungs are clear" not in opaque.text, "that all is well gives way"


@pytest.mark.parametrize("most", [0, 1])
def test_a_chosen_proposal_gets_its_missing_findings(most: int) -> None:
    """It states a finding that no training report has, so that it is chosen over any draft of theirs."""
    five = (*FOUR, "Fracture")
    text = "The heart is enlarged with a right effusion. A left basilar opacity is seen. There is a rib fracture."
    draft = drafted(*five, most=most, proposed=[text], cider=0.0, rouge_l=0.0, bleu=0.0)
    kinds = [row["source"]["kind"] for row in draft.evidence["sentences"]]
    assert kinds.count("decoder") == 3
    assert asserted(draft) == ({*five} if most else {*five} - {"Pneumothorax"})
    assert kinds.count("finding") == (1 if most else 0)


def test_a_large_bank_grows_the_same_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    import radweave.drafting.writer as module

    wanted = drafted(*FOUR, most=6)
    monkeypatch.setattr(module, "MOST_IN_PAIRS", 3)
    result = drafted(*FOUR, most=6)
    assert result.text == wanted.text
    assert result.evidence["sentences"] == wanted.evidence["sentences"]


def test_a_draft_is_the_same_whatever_was_drafted_before() -> None:
    config = ExpectedUtilityConfig(further_findings=6)
    writer = UtilityWriter(store(), CALIBRATION, config)
    many = [writer.write(evidence(*likely), NONE) for likely in (FOUR, FOUR[1:], FOUR[:3], FOUR)]
    alone = [UtilityWriter(store(), CALIBRATION, config).write(evidence(*FOUR[:3]), NONE)]
    assert many[2] == alone[0]
    assert many[0] == many[3]


def test_a_finding_goes_into_both_parts() -> None:
    parted = [
        "FINDINGS: The heart is normal in size. No pleural effusion. No pneumothorax. IMPRESSION: Normal chest.",
        "FINDINGS: There is cardiomegaly. No pneumothorax. IMPRESSION: The heart is enlarged.",
        "FINDINGS: The heart is normal. There is a pleural effusion. IMPRESSION: Small pleural effusion.",
        "FINDINGS: The heart is normal. There is a left pneumothorax. IMPRESSION: A left pneumothorax.",
    ]
    candidates = build_candidates(parted, LABELER, options=CandidateOptions(consistent=True))
    additions = FindingSentences(candidates, LABELER, consistent=True)
    both = next(one for one in candidates if {s.row for s in one.sentences if s.kind == "finding"} == {1, 2})
    draft = Choice(both, ("Cardiomegaly", "Pleural Effusion"), 0.0, 0.0)
    (grown,) = additions.variants(draft, CLASSES, np.zeros(4, dtype=bool))
    assert has_both_sections(grown.text)
    new = {(one.part, one.text) for one in grown.sentences if one.kind == "finding" and one.row == 3}
    assert new == {("findings", "There is a left pneumothorax."), ("impression", "A left pneumothorax.")}
    assert {s.row for s in grown.sentences if s.kind == "finding"} == {1, 2, 3}


@pytest.mark.parametrize(("method", "preset"), [("baseline", "tiny-ct"), ("diffvp", "tiny"), ("weave", "tiny-ct")])
def test_drafts_of_scans_take_up_more_findings(method: str, preset: str) -> None:
    assert resolve(method, preset, ()).decoding.expected_utility.further_findings == 6
