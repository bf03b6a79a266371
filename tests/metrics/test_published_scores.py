"""Scores on 50 pairs of reports against plain loops from their published definitions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import MinMaxScaler

from radweave.labels import get_labeler
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.commands import label
from radweave.metrics.further import Models, further_scores
from radweave.metrics.radgraph import combined_f1
from radweave.metrics.temporal import CHANGE_WORDS
from radweave.phantom.anatomy import draw_anatomy
from radweave.phantom.findings import draw_findings
from radweave.phantom.report import write_report
from tests.metrics import plain_scores
from tests.metrics.score_folders import write_chexbert, write_roberta
from tests.radgraph_weights import LABELS, RELATIONS, graph_of, write_radgraph
from tests.toys import bench_program

NEAR = 1e-5
SCORED = Options(meteor=False, floors=False, resamples=0)
BY_HAND = (
    ("", "The lungs are clear."),
    ("", "Stable left effusion."),
    ("   ", "No pleural effusion."),
    ("The lungs are clear.", "The lungs are clear."),
    ("No pleural effusion.", "Left pleural effusion."),
    ("Possible small left effusion.", "Small left effusion cannot be excluded."),
    ("Effusion. Effusion. Effusion.", "Effusion."),
    ("Un-changed heart; WORSE edema, new_opacity.", "unchanged heart. worsened edema, opacity is new"),
    ("decreased/increased opacity", "Decreased opacity, (increased) effusion: stable"),
    ("Größe 心臓 – … stable²", "stable heart"),
    ("heart", "the lungs are clear no pleural effusion in the left opacity of the heart is mild"),
    ("The right lung is larger than before", "Interval enlargement of the right effusion\nwhich is unchanged"),
    ("persistent-progressive opacity", "persistent, progressive opacity"),
    ("The heart is enlarged.", "Heart size is normal."),
)
"""Empty drafts, copies, denied and possible findings, one entity often, words of change among other marks."""


@pytest.fixture(scope="module")
def pairs() -> tuple[list[str], list[str]]:
    """50 drafts and references: those by hand, and reports of phantoms with one error each, or rewritten."""
    program = bench_program("planted_errors")
    labeler, edits = get_labeler("chexpert14"), [*program.PLANTED.values(), *program.HARMLESS.values()]
    drafts, references = map(list, zip(*BY_HAND, strict=True))
    number = 0
    while len(drafts) < 50:
        rng = np.random.default_rng([7, number])
        text = write_report(draw_findings(rng, draw_anatomy(rng), "long-tail", "xray"), rng, has_prior=False).findings
        draft = edits[number % len(edits)](text, labeler)
        if draft is not None:
            drafts.append(draft)
            references.append(text)
        number += 1
    return drafts, references


def scores_of(keys: Sequence[str], drafts: list[str], references: list[str], **folders: Path) -> dict[str, list[float]]:
    result = further_scores(keys, {"": drafts}, [[text] for text in references], Models(folders))
    assert not result.unavailable
    return {key: result.statistics[""][key].per_study.tolist() for key in keys}


def test_temporal_f1(pairs: tuple[list[str], list[str]]) -> None:
    assert sorted(CHANGE_WORDS) == sorted(plain_scores.WORDS_OF_CHANGE)
    drafts, references = pairs
    expected = [plain_scores.temporal_f1(*pair) for pair in zip(drafts, [[text] for text in references], strict=True)]
    assert scores_of(["temporal_F1"], *pairs)["temporal_F1"] == pytest.approx(expected, abs=NEAR)
    assert {0 < score < 1 for score in expected} == {True, False}
    assert min(expected) == pytest.approx(0, abs=1e-9)
    united = [[text, other] for text, other in zip(references, reversed(references), strict=True)]
    expected = [plain_scores.temporal_f1(*pair) for pair in zip(drafts, united, strict=True)]
    result = further_scores(["temporal_F1"], {"": drafts}, united, Models({}))
    assert result.statistics[""]["temporal_F1"].per_study == pytest.approx(expected, abs=NEAR)


@pytest.mark.parametrize("ontology", ["chexpert14", "ct18"])
def test_clinically_relevant_gain(pairs: tuple[list[str], list[str]], ontology: str) -> None:
    """Labels are ours on both sides; VLM3D's are those of its own network."""
    states = [[dict(row) for row in label(side, ontology=ontology)] for side in pairs]
    found = {str(state) for side in states for row in side for state in row.values()}
    assert {"positive", "negative", "blank"} <= found
    scored = [Pair(str(number), draft, (ref,)) for number, (draft, ref) in enumerate(zip(*pairs, strict=True))]
    options = Options(meteor=False, floors=False, resamples=0, scores=("CRG",))
    corpus = evaluate_pairs(scored, labeler=get_labeler(ontology), options=options).corpus
    assert corpus["CRG"].value == pytest.approx(plain_scores.crg(*states), abs=NEAR)
    assert 1 / 3 < plain_scores.crg(*states) < 1


def made_up_annotation(rng: np.random.Generator) -> dict[str, Any]:
    """A graph in the form of RadGraph's files: up to seven entities of few words, certain or not, with relations."""
    words, count = ("effusion", "Effusion", "small left"), int(rng.integers(0, 9))
    entities = {
        str(number): {
            "tokens": str(rng.choice(words)),
            "label": str(rng.choice(LABELS, p=(0.7, 0.1, 0.1, 0.1))),
            "start_ix": number,
            "end_ix": number,
            "relations": [
                [str(rng.choice(RELATIONS[:2])), str(rng.integers(0, count))] for _ in range(int(rng.integers(0, 3)))
            ],
        }
        for number in range(count)
    }
    return {"entities": entities}


def test_radgraph_combined_of_graphs() -> None:
    rng = np.random.default_rng(3)
    graphs = [(made_up_annotation(rng), made_up_annotation(rng)) for _ in range(40)]
    graphs += [(graph, graph) for graph, _ in graphs[:9]] + [({"entities": {}}, {"entities": {}})]
    expected = [plain_scores.radgraph_combined(*both) for both in graphs]
    assert [combined_f1(*map(graph_of, both)) for both in graphs] == pytest.approx(expected, abs=NEAR)
    assert len({round(score, 4) for score in expected}) > 10
    assert expected[-1] == 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random weights of the three models that RadCliQ rests on."""
    home = tmp_path_factory.mktemp("weights")
    return {
        "radgraph": write_radgraph(home / "radgraph"),
        "chexbert": write_chexbert(home / "chexbert"),
        "bertscore": write_roberta(home / "roberta"),
    }


@pytest.fixture(scope="module")
def inputs(pairs: tuple[list[str], list[str]], folders: dict[str, Path]) -> dict[str, list[float]]:
    """The scores that RadCliQ rests on, by plain loops."""
    annotations = {
        text: plain_scores.annotation(folders["radgraph"], "radgraph", text)
        for text in dict.fromkeys([*pairs[0], *pairs[1]])
    }
    kinds = {
        entity["label"]: bool(entity["relations"])
        for graph in annotations.values()
        for entity in graph["entities"].values()
    }
    assert len(kinds) > 1
    assert any(kinds.values())
    both = list(zip(*pairs, strict=True))
    return {
        "RadGraph_combined": [plain_scores.radgraph_combined(annotations[a], annotations[b]) for a, b in both],
        "BERTScore": plain_scores.bertscores(folders["bertscore"], *pairs, idf=False),
        "BERTScore_idf": plain_scores.bertscores(folders["bertscore"], *pairs, idf=True),
        "SembScore": plain_scores.sembscores(folders["chexbert"], *pairs),
        "BLEU_2_sentence": [plain_scores.sentence_bleu(*pair) for pair in both],
    }


def test_what_radcliq_rests_on(
    pairs: tuple[list[str], list[str]], folders: dict[str, Path], inputs: dict[str, list[float]]
) -> None:
    actual = scores_of(list(inputs), *pairs, **folders)
    for key, expected in inputs.items():
        assert actual[key] == pytest.approx(expected, abs=NEAR), key
        assert np.std(expected) > 0.01, key


RULES = {"": "BERTScore", "_idf": "BERTScore_idf"}


@pytest.mark.parametrize("rule", RULES)
def test_radcliq_1(
    pairs: tuple[list[str], list[str]], folders: dict[str, Path], inputs: dict[str, list[float]], rule: str
) -> None:
    """The numbers that RadEval states for ``radcliq-v1.pkl``; its scales are the roots of its variances."""
    means, variances = (
        (0.53792312, 0.61757256, 0.76479421, 0.44738335),
        (0.09170349, 0.05031470, 0.06448751, 0.08935745),
    )
    weights, intercept = (-3.77083683e-01, -3.70300100e-01, -2.52616218e-01, 4.31504841e-12), 2.46655256e-10
    names = ("RadGraph_combined", RULES[rule], "SembScore", "BLEU_2_sentence")
    rows = zip(*(inputs[name] for name in names), strict=True)
    expected = [plain_scores.radcliq(row, weights, intercept, means, np.sqrt(variances).tolist()) for row in rows]
    key = f"RadCliQ_v1{rule}"
    assert scores_of([key], *pairs, **folders)[key] == pytest.approx(expected, abs=NEAR)
    result = further_scores([f"{key}_inverse"], {"": pairs[0]}, [[text] for text in pairs[1]], Models(folders))
    assert result.statistics[""][f"{key}_inverse"].corpus() == pytest.approx(1 / np.mean(expected), rel=NEAR)


@pytest.mark.parametrize("rule", RULES)
def test_radcliq_0_of_a_normaliser_and_a_model_of_scikit_learn(
    pairs: tuple[list[str], list[str]],
    folders: dict[str, Path],
    inputs: dict[str, list[float]],
    rule: str,
    tmp_path: Path,
) -> None:
    """The published files hold a MinMaxScaler and a LinearRegression; here both are fitted to made-up counts.

    The file of the coefficients is written from their attributes as the page on evaluation says.
    """
    rng = np.random.default_rng(5)
    normaliser = MinMaxScaler().fit(rng.uniform(-0.5, 1.0, (160, 4)))
    model = LinearRegression().fit(rng.uniform(0.0, 1.0, (160, 4)), rng.uniform(0.0, 6.0, 160))
    names = ("RadGraph_combined", RULES[rule], "SembScore", "BLEU_2_sentence")
    expected = model.predict(normaliser.transform(np.array([inputs[name] for name in names]).T))
    file = {
        **dict(zip(("radgraph", "bertscore", "sembscore", "bleu_2"), model.coef_ * normaliser.scale_, strict=True)),
        "intercept": float(model.intercept_ + model.coef_ @ normaliser.min_),
    }
    (tmp_path / "radcliq_v0.json").write_text(json.dumps(file))
    key = f"RadCliQ_v0{rule}"
    assert scores_of([key], *pairs, **folders, radcliq=tmp_path)[key] == pytest.approx(expected, abs=NEAR)
