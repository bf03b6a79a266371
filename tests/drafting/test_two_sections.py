"""Drafts of two parts by expected utility: sentences stay in the part that they are from, and no part is empty."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.evidence import OwnReports
from radweave.core.study import has_both_sections, split_sections
from radweave.drafting.candidates import (
    Candidate,
    CandidateOptions,
    CandidatePool,
    Sentence,
    affirmed_classes,
    build_candidates,
    candidate_options,
    utility_options,
)
from radweave.drafting.changes import ComparisonPool
from radweave.drafting.choice import Choice
from radweave.drafting.smoothers import Changes
from radweave.drafting.store import (
    CANDIDATES,
    DraftingFacts,
    DraftingStore,
    labels_tensor,
    load_drafting,
    save_drafting,
)
from radweave.drafting.writer import Proposals
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.comparisons import STATES
from radweave.labels.text import sentences_by_part
from radweave.metrics.pairwise import WordingWeights
from radweave.nn.decoding import ExpectedUtilityConfig
from radweave.nn.memory.bank import Bank

LABELER = get_labeler("chexpert14")
CLASSES = LABELER.classes
REPORTS = [
    "FINDINGS: The heart is normal in size. The lungs are clear. No pleural effusion. IMPRESSION: Normal chest.",
    "FINDINGS: The heart size is normal. No effusion or pneumothorax. IMPRESSION: No pleural effusion. Clear lungs.",
    "FINDINGS: There is cardiomegaly. The lungs are clear. IMPRESSION: The heart is enlarged.",
    "FINDINGS: There is a small right pleural effusion. The heart is normal. IMPRESSION: Small pleural effusion.",
    "FINDINGS: There is a left pneumothorax. IMPRESSION: Unchanged from the prior study.",
]


def test_every_sentence_of_a_candidate_stands_in_the_part_of_its_report() -> None:
    candidates = build_candidates(REPORTS, LABELER, options=CandidateOptions(consistent=True))
    assert any(candidate.is_composed for candidate in candidates)
    for candidate in candidates:
        assert has_both_sections(candidate.text)
        assert [(s.part, s.text) for s in candidate.sentences] == sentences_by_part(candidate.text)
        for sentence in candidate.sentences:
            assert (sentence.part, sentence.text) in sentences_by_part(REPORTS[sentence.row])


def test_a_composite_says_a_finding_in_both_parts_and_denies_it_in_none() -> None:
    options = CandidateOptions(consistent=False)
    composed = [c for c in build_candidates(REPORTS, LABELER, options=options) if c.is_composed]
    new = [{(s.part, s.text) for s in c.sentences if s.kind == "finding"} for c in composed]
    effusion = {
        ("findings", "There is a small right pleural effusion."),
        ("impression", "Small pleural effusion."),
    }
    assert effusion in new
    for candidate, statement in zip(composed, new, strict=True):
        if statement == effusion:
            assert not {"No pleural effusion.", "No effusion or pneumothorax."} & {s.text for s in candidate.sentences}
    text = "FINDINGS: The heart is normal in size. The lungs are clear. There is a small right pleural effusion."
    assert f"{text} IMPRESSION: Small pleural effusion. Normal chest." in [c.text for c in composed]
    consistent = build_candidates(REPORTS, LABELER, options=CandidateOptions(consistent=True))
    assert not any("effusion." in c.text and "Normal chest" in c.text for c in consistent if c.is_composed)


def test_no_candidate_has_an_empty_part() -> None:
    """All that the fifth impression says is a comparison, which a draft cannot make; its finding has no impression."""
    pool = CandidatePool.build(REPORTS, LABELER, ExpectedUtilityConfig())
    assert not any(not candidate.is_composed and candidate.sentences[0].row == 4 for candidate in pool.candidates)
    assert all(has_both_sections(candidate.text) for candidate in pool.candidates)


def test_reports_without_headings_are_as_they_were() -> None:
    plain = [" ".join(split_sections(text).values()) for text in REPORTS]
    candidates = build_candidates(plain, LABELER)
    assert {sentence.part for candidate in candidates for sentence in candidate.sentences} == {""}
    assert [candidate.text for candidate in candidates[: len(plain)]] == plain


def test_a_text_of_a_language_model_is_a_draft_only_with_both_parts() -> None:
    counts = np.array([name != NO_FINDING for name in CLASSES], dtype=np.float64)
    proposals = Proposals(
        REPORTS, LABELER, counts=counts, thresholds=np.full(len(CLASSES), 0.3), weights=WordingWeights(1.0, 5.0, 0.0),
        point=None, beta=6.0, marks=False,
    )  # fmt: skip
    draft = Choice(build_candidates(REPORTS, LABELER)[0], (), 0.0, 0.0)
    likely = np.array([0.9 if name == "Pleural Effusion" else 0.05 for name in CLASSES])
    weights, barred = np.array([0.0, 0.0, 0.0, 1.0, 0.0]), np.zeros(5, dtype=bool)
    one = "FINDINGS: There is a small right pleural effusion."
    text = "findings : There is a small right pleural effusion. impression : Small pleural effusion. XXXX."
    for texts, wanted in (([one], draft.candidate.text), ([one, text], f"{one} IMPRESSION: Small pleural effusion.")):
        assert proposals.choose(draft, OwnReports(tuple(texts)), likely, weights, barred).candidate.text == wanted


def test_a_sentence_on_change_goes_into_its_own_part() -> None:
    reports = [*REPORTS, "FINDINGS: The heart is normal. IMPRESSION: The pleural effusion is larger than before."]
    comparing = ComparisonPool(reports, LABELER, marks=False, consistent=True)
    (worse,) = comparing.sentences["Pleural Effusion", "worse"]
    assert (worse.part, worse.row) == ("impression", 5)
    each = np.zeros((len(CLASSES), len(STATES)))
    each[CLASSES.index("Pleural Effusion"), STATES.index("worse")] = 1.0
    none = np.zeros(len(reports), dtype=bool)

    def variants(*sentences: Sentence) -> list[str]:
        made = comparing.variants(Candidate(sentences), Changes(each, 0.3), CLASSES, none)
        return [candidate.text for candidate in made]

    heart, normal = Sentence("The heart is normal.", "report", 0, "findings"), "impression"
    effusion = Sentence("There is a pleural effusion.", "report", 3, "findings")
    statement = Sentence("Small pleural effusion.", "report", 3, normal)
    assert variants(effusion, heart, Sentence("Stable lines.", "report", 3, normal), statement) == [
        "FINDINGS: The heart is normal. IMPRESSION: Stable lines. The pleural effusion is larger than before."
    ]
    assert variants(effusion, statement) == [], "its findings would be empty"


def made() -> DraftingStore:
    config = ExpectedUtilityConfig()
    pool = CandidatePool.build(REPORTS, LABELER, config)
    facts = DraftingFacts(
        classes=CLASSES, label_set="chexpert14", source="smoothers", wording=utility_options(config),
        candidates=candidate_options(config),
    )  # fmt: skip
    rows = tuple({"study_id": f"s{row}", "patient": f"p{row}", "text": text} for row, text in enumerate(REPORTS))
    return DraftingStore(
        Bank({"labels": labels_tensor(affirmed_classes(REPORTS, LABELER))}, rows), facts, pool.candidates, pool.asserts
    )


def test_parts_are_saved_with_a_run_and_unknown_parts_are_refused(tmp_path: Path) -> None:
    store = made()
    save_drafting(store, tmp_path / "drafting")
    assert list(load_drafting(tmp_path / "drafting").candidates) == list(store.candidates)
    path = tmp_path / "drafting" / CANDIDATES
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for wrong in ("conclusion", 3, ["findings"]):
        lines[0]["sentences"][0][3] = wrong
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        with pytest.raises(InputError, match="not a candidate of this bank"):
            load_drafting(tmp_path / "drafting")
