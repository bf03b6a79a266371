"""The clinical averages against scikit-learn, and what is undefined."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.labels import CHEXPERT5, CHEXPERT14, CT18, Labeler, Mention, get_labeler
from radweave.metrics import Options, Pair, evaluate_pairs
from radweave.metrics.clinical import LabelledPairs, class_groups, clinical_statistics, label_pairs

PLAIN = Options(meteor=False, floors=False, resamples=0)


class WordLabeler:
    """A class is positive where its name is in the text, negative after "no", uncertain after "maybe"."""

    name = "words"
    version = "1"
    classes = CHEXPERT14

    def label(self, texts: Sequence[str]) -> list[dict[str, Mention]]:
        return [{name: Mention(self._state(text, name)) for name in self.classes} for text in texts]

    def _state(self, text: str, name: str) -> LabelState:
        if f"no {name}" in text:
            return LabelState.NEGATIVE
        if f"maybe {name}" in text:
            return LabelState.UNCERTAIN
        return LabelState.POSITIVE if name in text else LabelState.BLANK


def random_states(seed: int, classes: int) -> LabelledPairs:
    draw = np.random.default_rng(seed)
    hyp, ref = (draw.integers(0, 4, size=(60, classes)).astype(np.int8) for _ in range(2))
    # A class that nobody states, and one that only the outputs state.
    hyp[:, 0] = ref[:, 0] = 2
    ref[:, 1] = 0
    hyp[:4] = ref[:4] = 0
    return LabelledPairs(CHEXPERT14 if classes == 14 else CT18, hyp, ref, "words 1", "test")


@pytest.mark.parametrize("classes", [14, 18])
@pytest.mark.parametrize("policy", ["negative", "positive"])
def test_averages_equal_sklearn(classes: int, policy: str) -> None:
    from sklearn.metrics import precision_recall_fscore_support

    labelled = random_states(7, classes)
    statistics = clinical_statistics(labelled)
    positive = (1,) if policy == "negative" else (1, 3)
    for group, columns in class_groups(labelled.classes).items():
        hyp, ref = (np.isin(states, positive)[:, columns] for states in (labelled.hyp, labelled.ref))
        for average, reference in (
            ("micro", "micro"),
            ("macro", "macro"),
            ("weighted", "weighted"),
            ("example", "samples"),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = precision_recall_fscore_support(ref, hyp, average=reference, zero_division=0)[:3]
            for measure, value in zip(("precision", "recall", "f1"), expected, strict=True):
                own = statistics[policy, group, average, measure].corpus()
                assert own == pytest.approx(value, abs=1e-12), (group, average, measure)


def test_groups_go_by_name_not_by_place() -> None:
    groups = class_groups(tuple(reversed(CHEXPERT14)))
    assert [tuple(reversed(CHEXPERT14))[i] for i in groups["chexpert5"]] == list(CHEXPERT5)
    assert len(groups["without_no_finding"]) == 13
    assert set(class_groups(CT18)) == {"all"}


def test_class_without_positives_is_undefined_and_counted() -> None:
    pairs = [Pair("a", "Edema no Fracture", ("Edema",)), Pair("b", "Atelectasis", ("no Edema",))]
    policies = evaluate_pairs(pairs, "ws", labeler=WordLabeler(), options=PLAIN).clinical.policies
    content = policies["uncertain_as_negative"]
    fracture, invented = content.per_class["Fracture"], content.per_class["Atelectasis"]
    assert (fracture.precision, fracture.recall, fracture.f1) == (None, None, None)
    assert (fracture.support, fracture.predicted) == (0, 0)
    # Only the output has it: its recall is undefined, its precision is a real 0.
    assert (invented.precision, invented.recall, invented.f1) == (0.0, None, 0.0)
    assert len(content.undefined("f1")) == 12
    assert "Fracture" in content.undefined("f1")
    averages = content.groups["all"]
    assert averages["macro"].f1.value == pytest.approx(1 / 14)
    assert averages["macro_defined"].f1.value == pytest.approx(1 / 2)


def test_no_positive_anywhere_leaves_micro_undefined() -> None:
    pairs = [Pair("a", "clear", ("clear",)), Pair("b", "clear", ("no Edema",))]
    content = evaluate_pairs(pairs, "ws", labeler=WordLabeler(), options=PLAIN).clinical
    averages = content.policies["uncertain_as_negative"].groups["all"]
    assert averages["micro"].f1.value is None
    assert averages["example"].f1.value == 0.0


def test_uncertain_counts_by_policy() -> None:
    pairs = [Pair("a", "maybe Edema", ("Edema",)), Pair("b", "Edema", ("maybe Edema",))]
    policies = evaluate_pairs(pairs, "ws", labeler=WordLabeler(), options=PLAIN).clinical.policies
    assert policies["uncertain_as_positive"].groups["all"]["micro"].f1.value == 1.0
    assert policies["uncertain_as_negative"].groups["all"]["micro"].f1.value == 0.0


def test_several_references_hold_the_strongest_statement() -> None:
    labelled = label_pairs([Pair("a", "x", ("no Edema", "maybe Fracture", "Edema no Fracture"))], WordLabeler())
    states = dict(zip(labelled.classes, labelled.ref[0].tolist(), strict=True))
    assert (states["Edema"], states["Fracture"], states["Pneumonia"]) == (1, 3, 0)
    doubted = label_pairs([Pair("a", "x", ("Edema", "maybe Edema"))], WordLabeler())
    assert doubted.ref[0, doubted.classes.index("Edema")] == 1


def test_hand_set_labels_are_taken_and_checked_by_name() -> None:
    labels = dict.fromkeys(CHEXPERT14, LabelState.NEGATIVE) | {"Edema": LabelState.POSITIVE}
    pairs = [Pair("a", "Edema", ("nothing",), labels=labels)]
    evaluation = evaluate_pairs(pairs, "ws", labeler=WordLabeler(), options=PLAIN)
    assert evaluation.clinical.reference_labels == "given with the pairs"
    assert evaluation.clinical.policies["uncertain_as_negative"].per_class["Edema"].f1 == 1.0
    with pytest.raises(InputError, match="do not name the classes"):
        label_pairs([Pair("a", "x", ("y",), labels={"Edema": LabelState.POSITIVE})], WordLabeler())
    with pytest.raises(InputError, match="only some pairs"):
        label_pairs([pairs[0], Pair("b", "x", ("y",))], WordLabeler())


@pytest.mark.parametrize("ontology", ["chexpert14", "ct18"])
def test_real_labelers_fit_and_are_called_rule_based(ontology: str) -> None:
    labeler: Labeler = get_labeler(ontology)
    pairs = [
        Pair("a", "There is a small left pleural effusion.", ("Left pleural effusion.",)),
        Pair("b", "No pleural effusion.", ("Right pleural effusion.",)),
    ]
    clinical = evaluate_pairs(pairs, labeler=labeler, options=PLAIN).clinical
    assert clinical.labeler_kind == "rule-based"
    assert "chexbert" not in str(clinical.labeler).lower()
    name = "Pleural Effusion" if ontology == "chexpert14" else "Pleural effusion"
    scores = clinical.policies["uncertain_as_negative"].per_class[name]
    assert (scores.precision, scores.recall, scores.support) == (1.0, 0.5, 2)
