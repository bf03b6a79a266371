"""From a store to drafts, and the store's files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from radweave.core.errors import InputError
from radweave.core.evidence import OwnReports
from radweave.drafting.calibration import ClassCalibration, Reliability, RunCalibration
from radweave.drafting.candidates import (
    Candidate,
    CandidatePool,
    Sentence,
    affirmed_classes,
    candidate_options,
    utilities,
    utility_options,
)
from radweave.drafting.choice import Choice
from radweave.drafting.prior import Known, PriorCalibration, PriorCurve, UpdatedStudy
from radweave.drafting.smoothers import Changes, Evidence, PriorEvidence
from radweave.drafting.store import (
    CANDIDATES,
    FACTS,
    UTILITIES,
    DraftingFacts,
    DraftingStore,
    labels_tensor,
    load_drafting,
    save_drafting,
)
from radweave.drafting.writer import (
    NO_ROW,
    NOTHING_LEFT,
    PRIOR_UNUSED,
    FindingSentences,
    PriorReport,
    Proposals,
    UtilityDraft,
    UtilityWriter,
)
from radweave.labels import get_labeler
from radweave.nn.decoding import ExpectedUtilityConfig
from radweave.nn.memory.bank import Bank

LABELER = get_labeler("chexpert14")
REPORTS = [
    "The heart is normal in size. The lungs are clear. No pleural effusion.",
    "There is cardiomegaly. The lungs are clear.",
    "Small right pleural effusion is present. Unchanged from the prior study.",
    "The XXXX are intact. The lungs are clear.",
]
CONFIG = ExpectedUtilityConfig()
CLASSES = LABELER.classes
EFFUSION, HEART = CLASSES.index("Pleural Effusion"), CLASSES.index("Cardiomegaly")
NONE = np.zeros(len(REPORTS), dtype=bool)


def made(reports: list[str] = REPORTS, *, ready: bool = True) -> DraftingStore:
    labels = affirmed_classes(reports, LABELER)
    pool = CandidatePool.build(reports, LABELER, CONFIG)
    facts = DraftingFacts(
        classes=CLASSES,
        label_set="chexpert14",
        source="smoothers",
        wording=utility_options(CONFIG),
        candidates=candidate_options(CONFIG),
    )
    rows = tuple({"study_id": f"s{row}", "patient": f"p{row}", "text": text} for row, text in enumerate(reports))
    bank = Bank({"labels": labels_tensor(labels)}, rows)
    worth = utilities(pool.candidates, reports, CONFIG, None) if ready else None
    return DraftingStore(bank, facts, pool.candidates, pool.asserts, worth)


SHOWN = Reliability(said=0.5, seen=0.5, count=10, low=0.0)
CURVE = ClassCalibration(slope=4.0, offset=-2.0, threshold=0.95, positives=5, reliability=(SHOWN,))
CALIBRATION = RunCalibration(
    source="smoothers", split="train", studies=10, threshold=0.2, classes=dict.fromkeys(CLASSES, CURVE)
)


def evidence_of(**scores: float) -> Evidence:
    values = np.zeros(len(CLASSES))
    for name, score in scores.items():
        values[{"heart": HEART, "effusion": EFFUSION}[name]] = score
    return Evidence(values, np.array([0.4, 0.2, 0.2, 0.2]))


def test_a_likely_finding_is_stated_and_every_sentence_has_its_source() -> None:
    draft = UtilityWriter(made(), CALIBRATION, CONFIG).write(evidence_of(heart=1.0), NONE)
    assert draft.evidence["expected_utility"]["asserted"] == ["Cardiomegaly"]
    assert draft.text == " ".join(row["text"] for row in draft.evidence["sentences"])
    for row in draft.evidence["sentences"]:
        assert row["text"] in REPORTS[int(row["source"]["study_id"][1:])]
    assert draft.evidence["class_probabilities"]["Cardiomegaly"] == pytest.approx(1 / (1 + np.exp(-2)))


def test_comparisons_are_no_candidates_and_marks_only_by_option() -> None:
    store = made()
    assert not [c.text for c in store.candidates if "prior" in c.text or "XXXX" in c.text]
    retained = UtilityWriter(store, CALIBRATION, CONFIG, marks=True)
    assert [c.text for c in retained.chooser.candidates if "XXXX" in c.text]


def test_options_weight_the_utility() -> None:
    both = evidence_of(heart=1.0, effusion=1.0)

    def asserted(**options: object) -> set[str]:
        config = ExpectedUtilityConfig.model_validate(options)
        return set(
            UtilityWriter(made(), CALIBRATION, config).write(both, NONE).evidence["expected_utility"]["asserted"]
        )

    assert asserted() == {"Cardiomegaly", "Pleural Effusion"}
    assert asserted(findings=0) == set()
    assert asserted(thresholds="per_class") == set(), "none is as likely as its own threshold"
    assert len(asserted(composites=False)) == 1, "no training report states both"


def test_the_patients_own_rows_lend_nothing() -> None:
    writer = UtilityWriter(made(), CALIBRATION, CONFIG)
    own = np.arange(len(REPORTS)) == 1
    draft = writer.write(evidence_of(heart=1.0), own)
    assert "Cardiomegaly" not in draft.evidence["expected_utility"]["asserted"], "the only one to say it is the own"
    assert "s1" not in {row["source"]["study_id"] for row in draft.evidence["sentences"]}
    assert "s1" not in {row["study_id"] for row in draft.evidence["recalled"]}
    nothing = writer.write(evidence_of(), np.ones(len(REPORTS), dtype=bool))
    assert nothing.text == ""
    assert nothing.warnings == (NOTHING_LEFT,)


def test_banks_without_findings_or_with_one_report_still_draft() -> None:
    only = UtilityWriter(made(REPORTS[:1]), CALIBRATION, CONFIG)
    flat = Evidence(np.ones(len(CLASSES)), np.ones(1))
    assert only.write(flat, np.zeros(1, dtype=bool)).text == REPORTS[0]


def test_a_drafting_store_is_read_as_written(tmp_path: Path) -> None:
    store = made()
    save_drafting(store, tmp_path / "drafting")
    repeated = load_drafting(tmp_path / "drafting")
    assert repeated.facts == store.facts
    assert list(repeated.candidates) == list(store.candidates)
    assert np.array_equal(repeated.asserts, store.asserts)
    assert store.utilities is not None
    assert repeated.utilities is not None
    assert np.array_equal(repeated.utilities, store.utilities)
    drafts = [
        UtilityWriter(one, CALIBRATION, CONFIG).write(evidence_of(heart=1.0), NONE)
        for one in (store, repeated, made(ready=False))
    ]
    assert drafts[0] == drafts[1] == drafts[2]


def test_utilities_of_other_options_or_reports_are_not_used(tmp_path: Path) -> None:
    store = made()
    other = ExpectedUtilityConfig(cider=0.0, rouge_l=1.0, bleu=0.0)
    ready, anew = (UtilityWriter(one, CALIBRATION, other) for one in (store, made(ready=False)))
    assert np.array_equal(ready.chooser.wording, anew.chooser.wording)  # type: ignore[union-attr]
    assert store.utilities is not None
    for wrong in (store.utilities[1:], store.utilities[:, 1:], store.utilities.astype(np.float64)):
        save_drafting(dataclasses.replace(store, utilities=wrong), tmp_path / "drafting")
        with pytest.raises(InputError, match="do not belong"):
            load_drafting(tmp_path / "drafting")


def test_labels_of_other_studies_or_classes_are_refused(tmp_path: Path) -> None:
    store = made()
    bank = Bank({"labels": store.bank.tensors["labels"][:, 1:]}, store.bank.rows)
    save_drafting(dataclasses.replace(store, bank=bank), tmp_path / "drafting")
    with pytest.raises(InputError, match="label per class"):
        load_drafting(tmp_path / "drafting")


def test_changes_join_a_written_report(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[object] = []

    def choose(self: Proposals, draft: Choice, *arguments: object, **options: object) -> Choice:
        messages.append(arguments[-1])
        return draft

    monkeypatch.setattr(Proposals, "choose", choose)
    writer = UtilityWriter(made(), CALIBRATION, CONFIG)
    changes = Changes(np.eye(6)[np.zeros(len(CLASSES), dtype=int)], 0.3)
    own = OwnReports(("There is cardiomegaly.",))
    nothing = np.zeros(len(CLASSES))
    for told in (None, UpdatedStudy(nothing.astype(np.int64), nothing, nothing, changes)):
        monkeypatch.setattr(UtilityWriter, "_updated", lambda *_, told=told: told)
        writer.write(evidence_of(heart=1.0), NONE, own)
    assert messages == [None, changes]


def test_a_draft_is_told_of_a_prior_as_its_options_say() -> None:
    """Where the prior's report affirms what the image shows faintly, it is stated; without the option as before."""
    rng = np.random.default_rng(0)
    before = rng.random((200, len(CLASSES))) < 0.5
    present = np.where(rng.random(before.shape) < 0.9, before, ~before).astype(float)
    scores, reported = rng.normal(size=before.shape), before.astype(np.int64)
    possible = np.repeat((np.arange(6) < 6)[None, None], 200, axis=0).repeat(len(CLASSES), axis=1)
    known = Known(present, possible, np.zeros_like(possible))
    learned = PriorCalibration.fit("val", CLASSES, scores, PriorEvidence(scores, reported), known, 0.4)
    affirmed = PriorEvidence(np.full(len(CLASSES), -0.5), (np.arange(len(CLASSES)) == HEART).astype(np.int64))
    faint = np.where(np.arange(len(CLASSES)) == HEART, 0.1, -1.0)
    study = dataclasses.replace(evidence_of(), scores=faint, prior=affirmed)
    store = dataclasses.replace(made(), prior=learned)

    def written(told: str, store: DraftingStore) -> UtilityDraft:
        config = CONFIG.model_copy(update={"prior": told})
        return UtilityWriter(store, CALIBRATION, config).write(study, NONE)

    untold, told = written("none", store), written("report", store)
    assert told.evidence["class_probabilities"][CLASSES[HEART]] > 0.5
    assert untold.evidence["class_probabilities"][CLASSES[HEART]] < 0.5
    assert "Cardiomegaly" in told.evidence["expected_utility"]["asserted"]
    assert "Cardiomegaly" not in untold.evidence["expected_utility"]["asserted"]
    assert told.evidence["changes"]["Cardiomegaly"]["before"] == "affirmed"
    assert told.evidence["calibration"]["thresholds"] != untold.evidence["calibration"]["thresholds"]
    assert not told.warnings
    unlearned = written("report", made())
    assert unlearned.text == untold.text
    assert unlearned.warnings == (PRIOR_UNUSED,)
    alone = UtilityWriter(store, CALIBRATION, CONFIG).write(dataclasses.replace(study, prior=None), NONE)
    assert (alone.text, alone.evidence) == (untold.text, untold.evidence)


def prior_report(reports: list[str] = REPORTS) -> PriorReport:
    candidates = CandidatePool.build(reports, LABELER, CONFIG).candidates
    words = " ".join(reports).lower().replace(".", "").split()
    return PriorReport(FindingSentences(candidates, LABELER, consistent=True), candidates, words)


def of_prior(*texts: str) -> Candidate:
    return Candidate(tuple(Sentence(text, "prior", NO_ROW) for text in texts))


def updates(
    before: Sequence[str], gains: dict[str, float], barred: NDArray[np.bool_] = NONE, most: int = 2
) -> list[str]:
    return [one.text for one in prior_report().updates(of_prior(*before), gains, barred, most)]


def test_the_report_of_a_prior_is_brought_up_to_date() -> None:
    before = ["There is cardiomegaly.", "There is a calcified granuloma.", "No pleural effusion."]
    whole = " ".join(before)
    assert updates(before, {}) == [whole, whole], "nothing changed"
    gain = {"Pneumonia": 0.3, "Pleural Effusion": 0.2}
    as_it_was, without_heart, updated = updates(before, {**gain, "Cardiomegaly": -0.1})
    assert as_it_was == whole
    assert without_heart == " ".join(before[1:])
    assert updated == f"{before[1]} Small pleural effusion is present.", "in place of what denied it"
    assert updates(before, gain, most=1)[-1] != whole, "no training report states pneumonia, the next one counts"
    assert updates(before, gain, np.arange(len(REPORTS)) == 2) == [whole, whole], "the patient's own sentence"
    assert updates(before, gain, most=0) == [whole, whole]
    assert updates(before[:1], {"Cardiomegaly": -1.0}) == before[:1], "no empty draft"


def test_what_a_prior_s_sentence_says_together_decides_and_doubt_counts() -> None:
    edema = ["There is pulmonary edema with pleural effusion.", "There is cardiomegaly."]
    gone = {"Edema": 0.1, "Pleural Effusion": -0.3}
    assert updates(edema, gone)[1] == edema[1]
    assert updates(edema, {**gone, "Edema": 0.4})[1] == " ".join(edema)
    doubted = ["Findings may represent pneumonia.", "There is cardiomegaly."]
    assert updates(doubted, {"Pneumonia": -0.2})[1] == doubted[1]
    mixed = ["There is cardiomegaly without pleural effusion.", "There is a calcified granuloma."]
    assert updates(mixed, {"Pleural Effusion": 0.2}) == [" ".join(mixed)] * 2, "a new finding takes no other away"


@pytest.mark.parametrize(
    ("text", "is_taken"),
    [
        ("There is cardiomegaly.", True),
        ("There is pleural effusion.", True),
        ("The XXXX are intact.", False),
        ("Findings were discussed with Dr. Smith.", False),
        ("Cardiomegaly was discussed.", False),
        ("There is cardiomegaly, as in 2019.", False),
        ("There is cardiomegaly in Smith.", False),
        ("Follow up of the effusion is present.", False),
        ("It is normal in size.", False),
        ("This is cardiomegaly.", False),
        ("The prior study.", False),
        ("1.", False),
    ],
)
def test_only_findings_in_words_of_training_reports_are_taken_from_a_prior(text: str, is_taken: bool) -> None:
    reports = [
        *REPORTS[:3],
        "It is of cardiomegaly. Discussed in this follow up. Cardiomegaly was as before. 1. In 2019.",
    ]
    left = prior_report(reports).taken(of_prior("The lungs are clear.", text))
    assert left is not None
    assert left.text == ("The lungs are clear. " + text if is_taken else "The lungs are clear.")
    assert prior_report(reports).taken(of_prior("Findings were discussed with Dr. Smith.")) is None


@pytest.mark.parametrize(("told", "is_taken"), [("report", True), ("both", True), ("image", False)])
def test_a_draft_may_be_the_report_of_the_prior_where_that_is_read(told: str, is_taken: bool) -> None:
    """Two findings and the words of no training report: nothing else states both."""
    names = np.arange(len(CLASSES))
    flat = PriorCurve(own=1.0, prior=0.0, offset=(0.0,) * len(CLASSES))
    learned = PriorCalibration(
        split="val",
        pairs=20,
        classes=CLASSES,
        curves={
            "report": {"affirmed": flat, "not_affirmed": flat},
            "image": {"unread": flat},
            "both": {"affirmed": flat, "not_affirmed": flat, "unread": flat},
        },
        growth=((0.0,) * 3,) * 3,
        threshold=1.0,
    )
    words = "There is cardiomegaly. Pleural effusion is present."
    likely = np.where((names == HEART) | (names == EFFUSION), 1.0, 0.0)
    prior = PriorEvidence(likely, (likely > 0).astype(np.int64), words)
    study = dataclasses.replace(evidence_of(), scores=likely, prior=prior)
    config = CONFIG.model_copy(update={"prior": told, "composites": False})
    draft = UtilityWriter(dataclasses.replace(made(), prior=learned), CALIBRATION, config).write(study, NONE)
    sources = {(row["source"]["kind"], row["source"]["study_id"]) for row in draft.evidence["sentences"]}
    assert (draft.text == words) == is_taken
    assert (sources == {("prior", None)}) == is_taken


def test_an_uncertain_mention_affirms_nothing() -> None:
    assert not affirmed_classes(["There may be a pleural effusion."], LABELER)[:, EFFUSION].any()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (CANDIDATES, "", "no candidate"),
        (CANDIDATES, json.dumps({"sentences": [["a", "report", 99]], "asserts": []}) + "\n", "not a candidate"),
        (CANDIDATES, json.dumps({"sentences": [["a", "other", 0]], "asserts": []}) + "\n", "not a candidate"),
        (CANDIDATES, json.dumps({"sentences": [["a", "report", 0]], "asserts": [99]}) + "\n", "not a candidate"),
        (FACTS, "{}", "required"),
        (UTILITIES, "x", "broken"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path: Path, name: str, text: str, words: str) -> None:
    folder = tmp_path / "drafting"
    save_drafting(made(), folder)
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        load_drafting(folder)
    assert name in str(caught.value)


def test_a_bank_that_is_too_large_for_all_pairs_drafts_from_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    import radweave.drafting.writer as module

    store = made()
    evidence_of = Evidence(np.eye(len(CLASSES))[EFFUSION], np.array([0.4, 0.2, 0.3, 0.1]))
    wanted = UtilityWriter(store, CALIBRATION, CONFIG).write(evidence_of, NONE)
    monkeypatch.setattr(module, "MOST_IN_PAIRS", 3)
    result = UtilityWriter(store, CALIBRATION, CONFIG).write(evidence_of, NONE)
    assert result.text == wanted.text
    assert result.evidence["sentences"] == wanted.evidence["sentences"]


def test_a_rare_finding_counts_for_no_more_than_the_bound() -> None:
    """One with a handful of positives among thousands would weigh more than all others together, and than every word.

    Where stating it pays off stays where it is.
    """
    rare = CURVE.model_copy(update={"balanced": 0.2, "weight": 300.0})
    calibration = CALIBRATION.model_copy(update={"classes": {**CALIBRATION.classes, "Cardiomegaly": rare}})
    options = {
        name: ExpectedUtilityConfig(thresholds="balanced", heaviest=most) for name, most in (("20", 20.0), ("5", 5.0))
    }
    result = {
        name: UtilityWriter(made(), calibration, config).write(evidence_of(heart=0.8), NONE)
        for name, config in options.items()
    }
    p = float(calibration(evidence_of(heart=0.8).scores[None])[0, HEART])
    for name, draft in result.items():
        assert draft.evidence["expected_utility"]["findings"] == pytest.approx(6.0 * float(name) * (p - 0.2))
    assert ExpectedUtilityConfig().heaviest == 20.0
    unlikely = UtilityWriter(made(), calibration, options["5"]).write(evidence_of(heart=0.1), NONE)
    assert "Cardiomegaly" not in unlikely.evidence["expected_utility"]["asserted"]
