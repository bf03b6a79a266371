"""Scores of change from the prior study, and floors that copy the prior's report, against counts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.study import Study
from radweave.labels import get_labeler
from radweave.metrics import Evaluation, Options, Pair, evaluate_pairs, read_pairs
from radweave.metrics.commands import EvaluateRequest, run_evaluate
from radweave.metrics.evaluate import ELSE_ITS_OWN, floor_pairs, floor_texts
from radweave.metrics.priors import CHANGES, COPY, ELSE_COPY, THIS_RUN, PriorScores, prior_reports
from radweave.metrics.records import PrecisionRecall
from radweave.metrics.significance import compare
from radweave.phantom.study import PhantomOptions, write_phantom_dataset

OPTIONS = Options(meteor=False, resamples=0)
EFFUSION, PNEUMOTHORAX, EDEMA = "There is a pleural effusion.", "There is a pneumothorax.", "There is pulmonary edema."
NORMAL = "The heart is normal. The lungs are clear."
WORSE, BETTER = "The pleural effusion is larger than before.", "The pleural effusion has decreased."
# The prior's report, the reference and the draft of each study; the last two have no prior.
STUDIES = (
    (EFFUSION, EFFUSION, EFFUSION),
    (EFFUSION, NORMAL, EFFUSION),
    (EFFUSION, f"{EFFUSION} {PNEUMOTHORAX}", PNEUMOTHORAX),
    (NORMAL, EDEMA, f"{EDEMA} {PNEUMOTHORAX}"),
    (f"{EFFUSION} {EDEMA}", NORMAL, NORMAL),
    (None, PNEUMOTHORAX, PNEUMOTHORAX),
    (None, NORMAL, EDEMA),
)


def made(studies: tuple[tuple[str | None, str, str], ...] = STUDIES) -> list[Pair]:
    return [
        Pair(f"s{number}", draft, (reference,), patient_id=f"p{number}", prior_report=prior)
        for number, (prior, reference, draft) in enumerate(studies)
    ]


def scored(pairs: list[Pair], options: Options = OPTIONS) -> Evaluation:
    return evaluate_pairs(pairs, labeler=get_labeler("chexpert14"), options=options)


def system(evaluation: Evaluation, name: str) -> PriorScores:
    assert evaluation.priors is not None
    return evaluation.priors.systems[name]


def values(scores: PrecisionRecall | None) -> tuple[float | None, float | None]:
    assert scores is not None
    return scores.precision.value, scores.recall.value


def test_changes_are_counted_over_the_cells_of_studies_with_a_prior() -> None:
    evaluation = scored(made())
    own = system(evaluation, THIS_RUN)
    # New: pneumothorax (s2) and edema (s3) are right, pneumothorax (s3) is not.
    assert values(own.changes["new"]) == (2 / 3, 1.0)
    # Resolved: three in the references (s1, s4 twice); the draft drops two of them, and one that is there (s2).
    assert values(own.changes["resolved"]) == (2 / 3, 2 / 3)
    # Changed: five in the references, six in the drafts, four in both.
    assert values(own.changes["changed"]) == (4 / 6, 4 / 5)
    assert evaluation.priors is not None
    assert evaluation.priors.cells == {"new": 2, "resolved": 3, "changed": 5, "worse": 0, "better": 0}
    assert evaluation.priors.studies == {"with_prior": 5, "without_prior": 2}


def test_findings_are_scored_with_and_without_a_prior() -> None:
    own = system(scored(made()), THIS_RUN)
    # With: effusion (s0), pneumothorax (s2), edema (s3) of five stated, of four in the references.
    assert values(own.findings["with_prior"]) == (3 / 5, 3 / 4)
    assert values(own.findings["without_prior"]) == (1 / 2, 1.0)


def test_a_copy_of_the_prior_s_report_finds_no_change() -> None:
    evaluation = scored(made())
    copied, else_copied = system(evaluation, COPY), system(evaluation, ELSE_COPY)
    assert values(copied.findings["with_prior"]) == (2 / 5, 2 / 4)
    assert copied.findings["without_prior"] is None
    assert else_copied.findings["with_prior"] == copied.findings["with_prior"]
    assert else_copied.findings["without_prior"] == system(evaluation, THIS_RUN).findings["without_prior"]
    assert values(copied.changes["new"]) == (None, 0.0)
    assert values(copied.changes["resolved"]) == (None, 0.0)
    assert copied.changes["changed"].f1.value == 0.0
    floor = evaluation.floors["prior_report_else_draft"]
    assert floor.findings_f1 == pytest.approx(2 * 3 / (7 + 5))


def test_worse_and_better_are_what_the_sentences_say() -> None:
    pairs = made(
        (
            (EFFUSION, WORSE, WORSE),
            (EFFUSION, WORSE, BETTER),
            (EFFUSION, EFFUSION, WORSE),  # the reference leaves it open
            (EFFUSION, NORMAL, BETTER),  # resolved, not better
            (EFFUSION, BETTER, EFFUSION),
        )
    )
    changes = system(scored(pairs), THIS_RUN).changes
    assert values(changes["worse"]) == (1.0, 1 / 2)
    assert values(changes["better"]) == (0.0, 0.0)


def test_uncertain_is_not_affirmed_in_any_of_the_three_reports() -> None:
    doubtful = "Possible pneumothorax."
    changes = system(scored(made(((doubtful, PNEUMOTHORAX, PNEUMOTHORAX), (NORMAL, doubtful, doubtful)))), THIS_RUN)
    assert values(changes.changes["new"]) == (1.0, 1.0)
    assert changes.changes["resolved"].recall.value is None


def test_without_priors_there_is_no_such_table() -> None:
    evaluation = scored([replace(pair, prior_report=None) for pair in made()])
    assert evaluation.priors is None
    assert not evaluation.prior_statistics
    assert "priors" not in evaluation.to_json()
    assert "prior_report_else_draft" not in evaluation.floors


def test_intervals_resample_patients() -> None:
    doubled = [replace(pair, study_id=f"{pair.study_id}{half}") for pair in made() for half in "ab"]
    options = Options(meteor=False, floors=False, resamples=200)
    both, once = scored(doubled, options), scored(made(), options)
    for change in ("new", "resolved", "changed"):
        wide, narrow = system(both, THIS_RUN).changes[change].recall, system(once, THIS_RUN).changes[change].recall
        assert wide == narrow
        assert wide.bounds is not None
        assert wide.bounds[0] <= (wide.value or 0.0) <= wide.bounds[1]


def test_a_run_that_names_less_than_a_copy_is_warned_of() -> None:
    silent = [replace(pair, hyp=NORMAL) for pair in made()]
    told = [replace(pair, hyp=pair.refs[0]) for pair in made()]
    assert any("a copy of its report" in sentence for sentence in scored(silent).warnings())
    assert not any("a copy of its report" in sentence for sentence in scored(told).warnings())


def test_recall_of_new_findings_is_compared() -> None:
    told = [replace(pair, hyp=pair.refs[0]) for pair in made()]
    copied = floor_pairs(made())[f"floor: {ELSE_ITS_OWN}"]
    assert [pair.hyp for pair in copied[:5]] == [prior for prior, _, _ in STUDIES[:5]]
    differences = {one.metric: one for one in compare(scored(copied), scored(told), resamples=50)}
    assert differences["new_R"].difference == 1.0
    assert differences["changed_F1"].difference == 1.0
    assert "new_R" not in {
        one.metric
        for one in compare(
            *(scored([replace(pair, prior_report=None) for pair in pairs]) for pairs in (told, told)), resamples=50
        )
    }


def test_floors_without_priors_have_no_copy() -> None:
    assert ELSE_ITS_OWN in floor_texts(made())
    assert ELSE_ITS_OWN not in floor_texts([replace(pair, prior_report=None) for pair in made()])


def test_the_prior_s_report_is_of_the_same_patient() -> None:
    first = Study(study_id="a", patient_id="p", report="Effusion.")
    second = Study(study_id="b", patient_id="p", report="Clear.", prior="a")
    stranger = Study(study_id="c", patient_id="q", report="Clear.", prior="a")
    lost = Study(study_id="d", patient_id="p", report="Clear.", prior="gone")
    assert prior_reports([first, second, stranger, lost]) == {"b": "Effusion."}


def test_a_pairs_file_carries_the_prior_s_report(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    row = {"study_id": "s", "hyp": NORMAL, "ref": EFFUSION}
    path.write_text("\n".join(json.dumps(row | {"study_id": f"s{n}", "prior_report": text}) for n, text in
                              enumerate((EDEMA, None, "  "))))  # fmt: skip
    assert [pair.prior_report for pair in read_pairs(path).pairs] == [EDEMA, None, None]
    path.write_text(json.dumps(row | {"prior_report": EDEMA, "has_prior": False}))
    with pytest.raises(InputError, match="no prior"):
        read_pairs(path)


def test_a_dataset_folder_gives_priors_and_patients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = PhantomOptions(image_size=32, lateral_share=0, prevalence="balanced")
    dataset = write_phantom_dataset(tmp_path / "data", modality="xray", num_studies=16, seed=0, options=options)
    path = tmp_path / "pairs.jsonl"
    rows = [{"study_id": study.study_id, "hyp": study.report, "ref": study.report} for study in dataset.studies()]
    path.write_text("\n".join(map(json.dumps, rows)))
    for priors in (None, tmp_path / "data"):
        run_evaluate(EvaluateRequest(pairs=(path,), priors=priors, meteor=False, resamples=20, as_json=True))
        result = json.loads(capsys.readouterr().out)
        assert ("priors" in result) == (priors is not None)
        assert result["resampling"]["unit"] == ("study" if priors is None else "patient")
    assert result["priors"]["studies"] == {"with_prior": 6, "without_prior": 10}
    own = result["priors"]["systems"][THIS_RUN]["changes"]
    assert all(own[change]["recall"]["value"] in (1.0, None) for change in CHANGES)
    run_evaluate(EvaluateRequest(pairs=(path,), priors=tmp_path / "data", meteor=False, resamples=0, show_all=True))
    shown = capsys.readouterr().out
    assert "With and without a prior" in shown
    assert "Change from the prior" in shown


def test_results_with_other_priors_are_not_compared() -> None:
    pairs = made()
    fewer = [replace(pair, prior_report=None) if pair.study_id == "s0" else pair for pair in pairs]
    without = [replace(pair, prior_report=None) for pair in pairs]
    with pytest.raises(InputError, match=r"1 of 7 studies differ \(first: s0\)"):
        compare(scored(pairs), scored(fewer), resamples=10)
    assert "new_R" in [difference.metric for difference in compare(scored(pairs), scored(pairs[::-1]), resamples=10)]
    assert "new_R" not in [difference.metric for difference in compare(scored(pairs), scored(without), resamples=10)]
