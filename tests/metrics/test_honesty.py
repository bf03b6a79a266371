"""Planted failures are visible: a collapsed model, swapped sides, invented findings, made-up comparisons."""

from __future__ import annotations

import re

import pytest

from radweave.labels import get_labeler
from radweave.labels.comparisons import compares_with_prior
from radweave.labels.places import get_place_labeler
from radweave.metrics import Evaluation, Options, Pair, evaluate_pairs, get_protocol
from radweave.metrics.floors import build_floors
from radweave.metrics.honesty import InventedRow, MissedRow
from radweave.metrics.laterality import contradictions, read_sides, sided_findings
from radweave.metrics.placement import placed_rows
from radweave.metrics.tables import PolicyTable

OPTIONS = Options(meteor=False, resamples=0)
REFERENCES = (
    "There is a small left pleural effusion. The heart is normal in size.",
    "Right lower lobe opacity suggests pneumonia. No pneumothorax.",
    "Calcified granuloma in the left upper lobe. The lungs are otherwise clear.",
    "Patchy left basal atelectasis. The right lung is clear.",
    "Large right pneumothorax with mediastinal shift.",
    "Normal heart size. The lungs are clear. No effusion.",
    "Stable right apical scarring compared to the prior study.",
    "A right internal jugular catheter ends in the superior vena cava. No pneumothorax.",
)


def scored(hyps: list[str], **fields: object) -> Evaluation:
    pairs = [Pair(f"s{i}", hyp, (REFERENCES[i],), **fields) for i, hyp in enumerate(hyps)]  # type: ignore[arg-type]
    return evaluate_pairs(pairs, labeler=get_labeler("chexpert14"), options=OPTIONS)


def findings(evaluation: Evaluation) -> PolicyTable:
    assert evaluation.clinical is not None
    return evaluation.clinical.policies["uncertain_as_negative"]


def micro_f1(evaluation: Evaluation) -> float:
    value = findings(evaluation).groups["all"]["micro"].f1.value
    assert isinstance(value, float)
    return value


def mirrored(text: str) -> str:
    other = {"left": "right", "right": "left", "Left": "Right", "Right": "Left"}
    return re.sub("left|right|Left|Right", lambda match: other[match.group()], text)


def test_a_perfect_copy_raises_no_alarm() -> None:
    evaluation = scored(list(REFERENCES))
    rows = evaluation.honesty
    assert rows.distinct_reports_share.value == 1.0
    assert rows.hallucinated_findings_per_report.value == 0.0
    assert rows.left_right_contradiction_share.value == 0.0
    assert rows.comparison_without_prior_share.value == 0.0
    assert evaluation.to_json()["warnings"] == []


def test_collapsed_model_is_visible() -> None:
    evaluation = scored([REFERENCES[5]] * len(REFERENCES))
    rows = evaluation.honesty
    assert rows.distinct_reports_share.value == 1 / len(REFERENCES)
    assert rows.distinct_reports_share.reference == 1.0
    assert rows.most_frequent_report_share.value == 1.0
    warnings = " ".join(evaluation.to_json()["warnings"])
    assert "collapsed: 100%" in warnings
    # Its reports can be dealt out anyhow: the shuffled baseline has the same score.
    assert 'no better than the floor "own reports, shuffled"' in warnings


def test_swapped_sides_are_visible_although_n_gram_scores_stay_high() -> None:
    copy, swapped = scored(list(REFERENCES)), scored([mirrored(text) for text in REFERENCES])
    bleu = swapped.corpus["BLEU_1"].value
    assert bleu is not None
    assert bleu > 0.85
    row = swapped.honesty.left_right_contradiction_share
    assert row.value == 1.0
    assert row.comparable_reports >= 5
    assert copy.sided.scores.f1.value == 1.0
    assert swapped.sided.scores.f1.value == 0.0
    assert row.comparable_sentences >= row.comparable_reports
    assert row.per_100_sentences == 100
    assert copy.honesty.left_right_contradiction_share.per_100_sentences == 0
    assert copy.placed is not None
    assert swapped.placed is not None
    assert copy.placed.scores.f1.value == 1.0
    # "Lower lobe" and "superior vena cava" stay; none of them has no side.
    assert swapped.placed.scores.f1.value == 0.0
    assert any("left and right contradict" in sentence for sentence in swapped.to_json()["warnings"])


def test_invented_finding_is_visible() -> None:
    copy = scored(list(REFERENCES))
    invented = scored([f"{text} There is a displaced rib fracture." for text in REFERENCES])
    row = invented.honesty.hallucinated_findings_per_report
    assert row.value == 1.0
    assert row.by_class == {"Fracture": len(REFERENCES)}
    fracture = findings(invented).per_class["Fracture"]
    assert (fracture.precision, fracture.predicted, fracture.support) == (0.0, len(REFERENCES), 0)
    assert micro_f1(invented) < micro_f1(copy) == 1.0
    assert "100% of the reports state a finding that the reference does not have" in invented.to_json()["warnings"]


@pytest.mark.parametrize(
    ("hyp", "ref", "invented", "missed"),
    [
        ("There is pneumonia.", "Possible pneumonia.", 0, 0),
        ("Possible pneumonia.", "There is pneumonia.", 0, 0),
        ("There is pneumonia.", "No pneumonia.", 1, 0),
        # That nothing is named is no finding, on neither side.
        ("The lungs are clear.", "Large right pneumothorax.", 0, 1),
        ("Large right pneumothorax.", "The lungs are clear.", 1, 0),
    ],
)
def test_invented_and_missed_findings_are_counted(hyp: str, ref: str, invented: int, missed: int) -> None:
    rows = evaluate_pairs([Pair("a", hyp, (ref,))], labeler=get_labeler("chexpert14"), options=OPTIONS).honesty
    assert rows.hallucinated_findings_per_report.value == invented
    assert rows.missed_findings_per_report.value == missed


def test_missed_findings_are_a_share_of_reference_findings() -> None:
    warnings = {
        "Large pneumothorax. Cardiomegaly.": "Large pneumothorax.",
        "Edema.": "Edema.",
        "Clear.": "Edema.",
    }
    pairs = [Pair(str(row), hyp, (ref,)) for row, (ref, hyp) in enumerate(warnings.items())]
    rows = evaluate_pairs(pairs, labeler=get_labeler("chexpert14"), options=OPTIONS).honesty
    missed, invented = rows.missed_findings_per_report, rows.hallucinated_findings_per_report
    assert isinstance(missed, MissedRow)
    assert isinstance(invented, InventedRow)
    assert missed.share_of_written_findings == pytest.approx(1 / 3)
    assert invented.share_of_stated_findings == pytest.approx(1 / 3)
    none = evaluate_pairs(
        [Pair("a", "Clear.", ("Clear.",))], labeler=get_labeler("chexpert14"), options=OPTIONS
    ).honesty
    assert isinstance(none.missed_findings_per_report, MissedRow)
    assert none.missed_findings_per_report.share_of_written_findings is None


def test_negation_flip_changes_the_clinical_table() -> None:
    flipped = [text.replace("No pneumothorax", "Pneumothorax") for text in REFERENCES]
    evaluation = scored(flipped)
    per_class = findings(evaluation).per_class["Pneumothorax"]
    assert (per_class.precision, per_class.recall) == (pytest.approx(1 / 3), 1.0)
    bleu = evaluation.corpus["BLEU_1"].value
    assert bleu is not None
    assert bleu > 0.95


def test_comparison_without_prior_is_visible() -> None:
    hyps = [f"{text} Unchanged from the prior exam." for text in REFERENCES]
    # Without being told, the one reference that compares counts as having a prior.
    assert scored(hyps).honesty.comparison_without_prior_share.value == 7 / 8
    assert scored(hyps, has_prior=False).honesty.comparison_without_prior_share.value == 1.0
    assert scored(hyps, has_prior=True).honesty.comparison_without_prior_share.value == 0.0
    # A study that comes with the report of its prior has one, whatever its reference compares with.
    told = scored(hyps, prior_report="The lungs are clear.").honesty.comparison_without_prior_share
    assert told.value == 0.0
    assert "known for 8 of 8" in told.rule


@pytest.mark.parametrize(
    ("sentence", "compares"),
    [
        ("Heart size is unchanged.", True),
        ("Compared to the previous study the effusion is smaller.", True),
        ("Increased opacity compared with prior.", True),
        ("No significant change.", True),
        ("Previously seen nodule.", True),
        ("Calcified nodes from prior granulomatous disease.", False),
        ("Status post previous sternotomy.", False),
        ("The renewed heart is normal.", False),
        ("The lungs are clear.", False),
        ("", False),
    ],
)
def test_comparing_sentences(sentence: str, compares: bool) -> None:
    assert compares_with_prior(sentence) is compares


def test_sides_of_findings() -> None:
    left, right = frozenset("L"), frozenset("R")
    assert sided_findings("Small left effusion and right basal atelectasis.") == {"effusion": left, "atelecta": right}
    assert sided_findings("Effusion on the left.") == {"effusion": left}
    assert sided_findings("No left effusion. The right lung is free of masses.") == {}
    assert sided_findings("From the right hilum to the left base an opacity is seen.") == {"opacit": left | right}
    # Of two sides before it the nearer one is the finding's.
    assert sided_findings("Right effusion and left atelectasis.") == {"effusion": right, "atelecta": left}
    assert sided_findings("Bilateral effusions.") == {"effusion": left | right}
    assert sided_findings("The lungs are clear.") == {}
    assert contradictions({"effusion": left}, {"effusion": right, "mass": left}) == ["effusion"]
    assert contradictions({"effusion": left}, {"effusion": left | right}) == []
    # Several references of a study are taken together, in any order.
    for refs in (("Left effusion.", "Right effusion."), ("Right effusion.", "Left effusion.")):
        assert read_sides([Pair("a", "Left effusion.", refs)]).rows.tolist() == [[1.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    ("hyp", "refs", "comparable", "contradicted"),
    [
        ("Left effusion.", ("Left effusion.",), 1, 0),
        ("Left effusion.", ("Right effusion.",), 1, 1),
        ("Left effusion.", ("Right nodule.",), 0, 0),
        ("Left effusion.", ("The lungs are clear.",), 0, 0),
        ("The lungs are clear.", ("Left effusion.",), 0, 0),
        ("Left effusion. Right nodule.", ("Right effusion. Right nodule.",), 1, 1),
        ("Left effusion.", ("Right effusion.", "Left effusion."), 1, 0),
        ("Left effusion.", ("Right effusion.", "Right nodule."), 1, 1),
    ],
)
def test_sides_are_compared_where_both_texts_side_a_finding(
    hyp: str, refs: tuple[str, ...], comparable: int, contradicted: int
) -> None:
    sides = read_sides([Pair("a", hyp, refs)])
    assert (sides.comparable, sides.contradicted) == (comparable, contradicted)


def test_floors_use_the_predictions_own_training_reports() -> None:
    pairs = [
        Pair(f"s{i}", text, (text,), floors={"constant": "Lungs clear.", "nearest_neighbour": REFERENCES[i - 1]})
        for i, text in enumerate(REFERENCES)
    ]
    floors = evaluate_pairs(pairs, options=OPTIONS).floors
    assert floors["constant_report"].source == "given with the predictions"
    assert floors["constant_report"].distinct_reports_share == 1 / len(pairs)
    assert floors["nearest_neighbour"].corpus["BLEU_1"] < 1.0
    partly = [pairs[0], *(Pair(p.study_id, p.hyp, p.refs) for p in pairs[1:])]
    floors = evaluate_pairs(partly, options=OPTIONS).floors
    assert floors["nearest_neighbour"].corpus is None
    assert "7 of 8 predictions lack" in floors["nearest_neighbour"].source


@pytest.mark.parametrize(
    "name", ["constant", "constant_findings", "constant_wording", "train_copy", "shuffled_pairing", "nearest_neighbor"]
)
def test_a_floor_that_is_given_is_not_made_again(name: str) -> None:
    pairs = [Pair(f"s{i}", text, (text,), floors={name: f"Given {i}."}) for i, text in enumerate(REFERENCES)]
    train = ["The lungs are clear. No effusion."] * 3 + ["Large right pleural effusion."]
    floors = build_floors(pairs, get_protocol("ws"), train, 0, get_labeler("chexpert14"))
    given = {key for key, floor in floors.items() if floor.source == "given with the predictions"}
    renamed = {"constant": "constant_report", "nearest_neighbor": "nearest_neighbour"}
    assert given == {renamed.get(name, name)}
    assert floors[given.pop()].texts == tuple(f"Given {i}." for i in range(len(REFERENCES)))
    made = {key for key, floor in floors.items() if floor.texts is not None}
    assert made >= {"constant_report", "constant_findings", "constant_wording", "train_copy", "shuffled_pairing"}


def test_floors_made_here() -> None:
    pairs = [Pair(f"s{i}", text, (text,)) for i, text in enumerate(REFERENCES)]
    alone = evaluate_pairs(pairs, options=OPTIONS).floors
    assert "evaluated references" in alone["constant_report"].source
    assert alone["train_copy"].corpus is None
    # The outputs are perfect, every study now has another one's: no study keeps its own.
    assert alone["shuffled_pairing"].corpus["ROUGE_L"] < 0.5
    train = ["The lungs are clear. No effusion."] * 3 + ["Large mass."]
    trained = evaluate_pairs(pairs, train_texts=train, options=OPTIONS).floors
    assert "training set" in trained["constant_report"].source
    assert trained["constant_report"].distinct_reports_share == 1 / len(pairs)
    assert trained["train_copy"].corpus["BLEU_1"] is not None
    copies = [build_floors(pairs, get_protocol("ws"), train, seed)["train_copy"].texts for seed in (0, 0, 1)]
    assert copies[0] == copies[1] != copies[2]


def test_constant_from_references_does_not_match_itself() -> None:
    """A long odd reference would be the best constant by matching itself, the others being short."""
    odd = " ".join(f"w{i}" for i in range(100))
    first, second = "lungs are clear and normal", "lungs are clear and hazy"
    pairs = [Pair(str(i), "x", (ref,)) for i, ref in enumerate((odd, first, second))]
    texts = build_floors(pairs, get_protocol("ws"), None, seed=0)["constant_report"].texts
    # Everybody gets one report; the study it comes from gets the second best.
    assert texts == (first, second, first)
    shared = [Pair(str(i), "x", (ref,)) for i, ref in enumerate((odd, first, first))]
    assert build_floors(shared, get_protocol("ws"), None, seed=0)["constant_report"].texts == (first,) * 3


def test_a_finding_in_another_lobe_is_a_miss_and_an_invention() -> None:
    labeler = get_place_labeler("chexpert14")
    pair = Pair("a", "Right upper lobe opacity. Left effusion.", ("Right lower lobe opacity. Left basilar effusion.",))
    assert placed_rows([pair], labeler).tolist() == [[1, 1, 1]], "free fluid at the base is that of the pleural space"
    several = Pair("a", "Right upper lobe opacity.", ("Right lower lobe opacity.", "Right upper lobe opacity."))
    assert placed_rows([several], labeler).tolist() == [[1, 0, 1]]
    assert placed_rows([Pair("a", "Opacity.", ("No edema.",))], labeler).tolist() == [[0, 0, 0]]


def test_contradictions_are_counted_by_sentence_too() -> None:
    sides = read_sides([Pair("a", "Left effusion. Right mass. Left nodule.", ("Right effusion. Right mass.",))])
    assert (sides.comparable, sides.contradicted) == (1, 1)
    assert (sides.comparable_sentences, sides.contradicted_sentences) == (2, 1)
