"""Scores made by other people's programs on real generated reports, reproduced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.evaluate import Evaluation
from radweave.metrics.language import cider
from radweave.metrics.meteor import find_java_tools, meteor_statistics
from radweave.metrics.ngrams import PairedTexts, count_pairs
from radweave.metrics.statistics import ExternalScores

# Corpus values are given in full precision, values per report rounded to 8 digits: both far inside the 1e-6 asked for.
CORPUS_TOLERANCE = 1e-9
ROUNDED_TOLERANCE = 1e-8
PLAIN = Options(meteor=False, floors=False, resamples=0)

needs_java = pytest.mark.skipif(isinstance(find_java_tools(), str), reason="Java or pycocoevalcap is not here")


def read(shared_data: Path, name: str) -> Any:
    return json.loads((shared_data / "eval_oracles" / name).read_text(encoding="utf-8"))


def iu_pairs(shared_data: Path, system: str) -> list[Pair]:
    data = read(shared_data, "iu_generated_vs_reference.json")
    refs = data[data["reference_set_of"][system]]
    return [Pair(study, text, (refs[study],)) for study, text in data["generated"][system].items()]


IU_SYSTEMS = (
    "constant_template",
    "llm_free_generation_beam3",
    "candidate_by_logprob",
    "candidate_by_number",
    "template_sentence_fusion",
    "retrieval_oracle_top50",
)
IU_NAMES = {
    **{f"Bleu_{n}": f"BLEU_{n}" for n in range(1, 5)},
    "ROUGE_L": "ROUGE_L",
    "CIDEr": "CIDEr",
    "rouge_score_rouge1_f": "ROUGE_1",
    "rouge_score_rouge2_f": "ROUGE_2",
    "rouge_score_rougeL_f": "ROUGE_L_F1",
}


@pytest.mark.parametrize("system", IU_SYSTEMS)
def test_iu_corpus_and_per_report_scores(shared_data: Path, system: str) -> None:
    expected = read(shared_data, "iu_expected_scores.json")[system]
    evaluation = evaluate_pairs(iu_pairs(shared_data, system), "ws", options=PLAIN)
    assert len(evaluation.study_ids) == expected["corpus"]["n"]
    for reference, own in IU_NAMES.items():
        assert evaluation.corpus[own].value == pytest.approx(expected["corpus"][reference], abs=CORPUS_TOLERANCE), own
    per_study = evaluation.per_study()
    for study, scores in expected["per_report"].items():
        for reference, value in scores.items():
            if reference in IU_NAMES:
                assert per_study[study][IU_NAMES[reference]] == pytest.approx(value, abs=ROUNDED_TOLERANCE), (
                    study,
                    reference,
                )


@pytest.mark.slow
@needs_java
@pytest.mark.parametrize("system", IU_SYSTEMS)
def test_iu_meteor(shared_data: Path, system: str) -> None:
    expected = read(shared_data, "iu_expected_scores.json")[system]
    pairs = iu_pairs(shared_data, system)
    result = meteor_statistics([pair.hyp for pair in pairs], [pair.refs for pair in pairs])
    assert isinstance(result, ExternalScores)
    meteor = result.statistics["METEOR"]
    assert meteor.corpus() == pytest.approx(expected["corpus"]["METEOR"], abs=CORPUS_TOLERANCE)
    for pair, score in zip(pairs, meteor.per_study, strict=True):
        assert score == pytest.approx(expected["per_report"][pair.study_id]["METEOR"], abs=ROUNDED_TOLERANCE)


def ct_pairs(shared_data: Path) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = {"ctrg_whole": []}
    folder = shared_data / "ct_reports"
    for line in (folder / "reg2rg_ctrg_pairs.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        groups["ctrg_whole"].append(Pair(row["id"], row["generated"], (row["reference"],)))
    for line in (folder / "reg2rg_region_pairs.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        group = groups.setdefault(f"region:{row['region']}", [])
        group.append(Pair(row["volume"], row["generated"], (row["reference"],)))
    return groups


@pytest.mark.long
def test_ct_scores_in_the_way_of_hf_evaluate(shared_data: Path) -> None:
    pairs = ct_pairs(shared_data)
    expected = read(shared_data, "ct_expected_scores.json")["scores"]
    assert set(expected) <= set(pairs)
    for name, scores in expected.items():
        evaluation = evaluate_pairs(pairs[name], "hf", options=PLAIN)
        assert len(evaluation.study_ids) == scores["n"]
        for reference, value in scores.items():
            if reference == "n":
                continue
            own = f"{reference.removeprefix('Overall_').replace('-', '_')}"
            own += "_corpus" if reference.startswith("Overall_") else ""
            assert evaluation.corpus[own].value == pytest.approx(value, abs=CORPUS_TOLERANCE), (name, reference)


def nlgeval(shared_data: Path) -> list[tuple[Evaluation, dict[str, float], dict[str, Any]]]:
    results = []
    for example in read(shared_data, "nlgeval_examples.json"):
        pairs = [
            Pair(str(i), hyp, tuple(refs))
            for i, (hyp, refs) in enumerate(zip(example["hypotheses"], example["references"], strict=True))
        ]
        results.append((evaluate_pairs(pairs, "ws", options=PLAIN), example["expected"], example))
    return results


def test_nlgeval_examples_with_several_references(shared_data: Path) -> None:
    """They are given with six digits, the first of each with its rounding cut off."""
    names = {**{f"Bleu_{n}": f"BLEU_{n}" for n in range(1, 5)}, "ROUGE_L": "ROUGE_L"}
    compared = 0
    for evaluation, expected, example in nlgeval(shared_data):
        for reference, own in names.items():
            if reference in expected:
                assert evaluation.corpus[own].value == pytest.approx(expected[reference], abs=1e-6), (
                    example,
                    reference,
                )
                compared += 1
    assert compared == 12


def test_nlgeval_cider_where_it_is_defined(shared_data: Path) -> None:
    """Coco's scorer gives 0 for a single pair; here a single study has no CIDEr, and says why."""
    single, pair = nlgeval(shared_data)[:2]
    assert pair[0].corpus["CIDEr"].value == pytest.approx(pair[1]["CIDEr"], abs=1e-6)
    assert single[0].corpus["CIDEr"].value is None
    assert "one study" in str(single[0].corpus["CIDEr"].unavailable)
    texts = PairedTexts.of(
        [hyp.split() for hyp in single[2]["hypotheses"]],
        [[ref.split() for ref in refs] for refs in single[2]["references"]],
    )
    clipped, _ = cider(texts, count_pairs(texts, 4))
    assert clipped.tolist() == [single[1]["CIDEr"]]


@pytest.mark.slow
@needs_java
def test_nlgeval_meteor(shared_data: Path) -> None:
    for _, expected, example in nlgeval(shared_data)[:2]:
        result = meteor_statistics(example["hypotheses"], example["references"])
        assert isinstance(result, ExternalScores)
        assert result.statistics["METEOR"].corpus() == pytest.approx(expected["METEOR"], abs=1e-6)
