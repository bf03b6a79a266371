"""Rewards against plain loops, and what they refuse."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radweave.core.errors import InputError
from radweave.core.study import LabelState
from radweave.drafting.choice import prepared
from radweave.engine import rewards as module
from radweave.engine.rewards import REWARDS, Rewards, TrainingTexts, refuse_unusable_rewards
from radweave.labels import NO_FINDING, get_labeler
from radweave.labels.contradictions import contradictions
from radweave.labels.text import split_sentences
from radweave.methods.model import TrainingView
from radweave.metrics.radgraph import RadGraphReader, radgraph_f1
from tests.radgraph_weights import write_radgraph

LABELER = get_labeler("chexpert14")
TRAINING = (
    "Heart size is normal. The lungs are clear.",
    "The heart is enlarged. No pleural effusion.",
    "Small left pleural effusion. Heart size is normal.",
    "Right pneumothorax. The heart is enlarged.",
    "The heart is enlarged. Small left pleural effusion.",
    "The lungs are clear. No pleural effusion or pneumothorax.",
)
TEXTS = (
    "The heart is enlarged. Small left pleural effusion.",
    "The lungs are clear. The lungs are clear. The lungs are clear.",
    "Small left pleural effusion. No pleural effusion.",
    "",
    "The heart is enlarged. Right pneumothorax.",
    "Effusion",
)
REFERENCES = (
    "Right pneumothorax. The heart is enlarged.",
    "Heart size is normal. The lungs are clear.",
    "Small left pleural effusion. Heart size is normal.",
    "The lungs are clear.",
    "The heart is enlarged. Right pneumothorax.",
    "",
)


def reward(name: str, texts: Sequence[str] = TEXTS, references: Sequence[str] = REFERENCES) -> list[float]:
    values = Rewards({name: 1.0}, TrainingTexts(TRAINING, LABELER)).parts(texts, references)[name]
    return [float(value) for value in values]


def words_of(text: str) -> list[str]:
    return prepared([text])[0]


def grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


def test_findings_agree_by_class_and_rare_ones_weigh_more() -> None:
    def stated(text: str) -> set[str]:
        (mentions,) = LABELER.label([text])
        return {n for n, m in mentions.items() if m.state is LabelState.POSITIVE and n != NO_FINDING}

    share = {name: max(sum(name in stated(text) for text in TRAINING), 1) / len(TRAINING) for name in LABELER.classes}
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = stated(text), stated(reference)
        weight = {name: share[name] ** -0.5 for name in own | wanted}
        total = sum(weight[name] for name in own) + sum(weight[name] for name in wanted)
        expected.append(2 * sum(weight[name] for name in own & wanted) / total if total else 1.0)
    assert reward("findings") == pytest.approx(expected, abs=1e-12)
    assert len({*expected}) > 2
    both = "The heart is enlarged. Right pneumothorax."
    common, rare = reward("findings", ["The heart is enlarged.", "Right pneumothorax."], [both, both])
    assert rare > common, "one report in six has a pneumothorax, every second one a large heart"


@pytest.mark.parametrize("tau", [0.25, 0.125])
def test_statements_pay_from_a_probability_on(tau: float) -> None:
    def stated(text: str) -> set[str]:
        (mentions,) = LABELER.label([text])
        return {n for n, m in mentions.items() if m.state is LabelState.POSITIVE and n != NO_FINDING}

    names = [name for name in LABELER.classes if name != NO_FINDING]
    weight = {n: (max(sum(n in stated(text) for text in TRAINING), 1) / len(TRAINING)) ** -0.5 for n in names}
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = stated(text), stated(reference)
        gain = sum(weight[n] * (1 - tau if n in wanted else -tau) for n in own)
        most = (1 - tau) * max(sum(weight[n] for n in wanted), sum(weight.values()) / len(weight))
        expected.append(min(max(0.5 + gain / most / 2, 0.0), 1.0))
    paying = Rewards({"statements": 1.0}, TrainingTexts(TRAINING, LABELER, break_even=tau))
    assert paying.parts(TEXTS, REFERENCES)["statements"].tolist() == pytest.approx(expected, abs=1e-12)
    assert tau != 0.25 or reward("statements") == pytest.approx(expected, abs=1e-12), "as it is by itself"
    assert len({*expected}) > 2
    finding, normal = "Right pneumothorax.", "The lungs are clear."
    right, wrong, silent, agreed = reward(
        "statements", [finding, finding, normal, normal], [finding, normal, finding, normal]
    )
    assert right > silent == agreed > wrong, "silence neither gains nor costs"
    assert right - silent > agreed - wrong, "a finding gains more than an invented one costs"


def test_cider_has_the_document_frequencies_of_the_training_reports() -> None:
    documents = [words_of(text) for text in TRAINING]
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = words_of(text), words_of(reference)
        total = 0.0
        for order in range(1, 5):
            frequency = Counter(gram for words in documents for gram in grams(words, order))

            def idf(gram: tuple[str, ...], frequency: Counter[tuple[str, ...]] = frequency) -> float:
                return math.log(len(documents)) - math.log(max(frequency[gram], 1))

            mine, theirs = grams(own, order), grams(wanted, order)
            product = sum(min(n, theirs[gram]) * theirs[gram] * idf(gram) ** 2 for gram, n in mine.items())
            norms = [math.sqrt(sum((n * idf(gram)) ** 2 for gram, n in side.items())) for side in (mine, theirs)]
            total += product / (norms[0] * norms[1]) if all(norms) else 0.0
        difference = max(len(own) - 1, 0) - max(len(wanted) - 1, 0)
        expected.append(total / 4 * math.exp(-(difference**2) / 72))
    assert reward("cider") == pytest.approx(expected, abs=1e-9)
    assert max(expected) > 0.5


def test_bleu_is_smoothed_and_of_each_text_alone() -> None:
    expected = []
    for text, reference in zip(TEXTS, REFERENCES, strict=True):
        own, wanted = words_of(text), words_of(reference)
        if not own:
            expected.append(0.0)
            continue
        logs = [
            math.log((sum((grams(own, n) & grams(wanted, n)).values()) + 1) / (max(len(own) - n + 1, 0) + 1))
            for n in range(1, 5)
        ]
        brevity = 1.0 if len(own) > len(wanted) else math.exp(1 - len(wanted) / len(own))
        expected.append(math.exp(sum(logs) / 4) * brevity)
    assert reward("bleu") == pytest.approx(expected, abs=1e-12)


def test_length_is_the_shorter_one_over_the_longer_one() -> None:
    assert reward("length", ["a b c", "a", "", "a"], ["a b c", "a b c d", "", ""]) == [1.0, 0.25, 1.0, 0.0]


def test_repetition_is_the_share_of_distinct_trigrams() -> None:
    expected = []
    for text in TEXTS:
        counts = grams(text.lower().split(), 3)
        expected.append(len(counts) / counts.total() if counts else 1.0)
    assert reward("repetition") == pytest.approx(expected, abs=1e-12)
    assert expected[1] < 0.5 < expected[0]


def test_contradictions_are_the_share_of_sentences_that_take_another_one_back() -> None:
    expected = []
    for text in TEXTS:
        sentences = split_sentences(text)
        denying = {one.denies for one in contradictions(sentences)}
        expected.append(1 - len(denying) / len(sentences) if sentences else 1.0)
    assert reward("contradictions") == expected
    assert expected[2] == 0.5


EFFUSION, PNEUMOTHORAX, EDEMA = "There is a pleural effusion.", "There is a pneumothorax.", "There is pulmonary edema."
NORMAL = "The heart is normal. The lungs are clear."
WORSE, BETTER = "The pleural effusion is larger than before.", "The pleural effusion has decreased."


@pytest.mark.parametrize(
    ("prior", "reference", "text", "expected"),
    [
        (EFFUSION, EFFUSION, EFFUSION, 1.0),  # neither states a change
        (EFFUSION, NORMAL, EFFUSION, 0.0),  # resolved, and not told
        (EFFUSION, f"{EFFUSION} {PNEUMOTHORAX}", PNEUMOTHORAX, 2 / 3),  # new, and one that did not resolve
        (f"{EFFUSION} {EDEMA}", PNEUMOTHORAX, EDEMA, 2 / 4),  # one of three changes
        (EFFUSION, WORSE, WORSE, 1.0),
        (EFFUSION, WORSE, BETTER, 0.0),
        (EFFUSION, EFFUSION, WORSE, 1.0),  # the reference leaves open how it changed
        (None, PNEUMOTHORAX, NORMAL, 1.0),  # no prior: nothing to say
    ],
)
def test_changes_are_rewarded_beside_the_prior(prior: str | None, reference: str, text: str, expected: float) -> None:
    changes = Rewards({"change": 1.0}, TrainingTexts(TRAINING, LABELER))
    others = ([NORMAL, EDEMA], [EDEMA, EDEMA], [NORMAL, None])
    values = changes.parts([*others[0], text], [*others[1], reference], [*others[2], prior])["change"]
    assert values.tolist() == pytest.approx([0.0, 1.0, expected])


def test_radgraph_is_read_from_the_folder_of_the_user(tmp_path: Path) -> None:
    folder = write_radgraph(tmp_path / "radgraph")
    training, reader = TrainingTexts(TRAINING, LABELER, folder), RadGraphReader(folder)
    texts = ["the heart is normal . no effusion", "the lungs are clear", ""]
    references = ["the heart is normal . left effusion", "the lungs are clear", "the lungs are clear"]
    found = Rewards({"radgraph": 1.0}, training).parts(texts, references)["radgraph"].tolist()
    graphs = [radgraph_f1(reader.graph(one), reader.graph(other)) for one, other in zip(texts, references, strict=True)]
    assert found == [partial for _, partial, _ in graphs]
    assert found[1:] == [1.0, 0.0]
    assert 0 < found[0] < 1
    (folder / "weights.th").unlink()
    with pytest.raises(InputError, match=r"field 'radgraph': RadGraph needs files that are missing"):
        refuse_unusable_rewards(["radgraph"], folder)


def test_every_reward_is_between_0_and_1_and_does_not_depend_on_the_other_texts() -> None:
    for name in REWARDS.keys() - {"change", "radgraph"}:
        together = reward(name)
        assert all(0 <= value <= 1 for value in together), name
        alone = [reward(name, [text], [other])[0] for text, other in zip(TEXTS, REFERENCES, strict=True)]
        assert together == pytest.approx(alone, abs=1e-12), name


def test_the_reward_is_the_weighted_mean_and_one_without_weight_is_only_measured() -> None:
    both = Rewards({"length": 3.0, "repetition": 1.0, "bleu": 0.0}, TrainingTexts(TRAINING, LABELER))
    parts = both.parts(TEXTS, REFERENCES)
    assert set(parts) == {"length", "repetition", "bleu"}
    expected = (3 * np.array(reward("length")) + np.array(reward("repetition"))) / 4
    assert both.total(parts) == pytest.approx(expected, abs=1e-12)


def test_rewards_of_another_split_are_refused() -> None:
    view = TrainingView((), (), (), 0, 0, split="val")
    with pytest.raises(InputError, match="training split alone"):
        TrainingTexts.of(view, LABELER)


def test_an_unknown_reward_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(InputError, match=r"no such reward.*findings"):
        refuse_unusable_rewards(["findings", "clarity"], None)


class _Own(EntryPoint):
    """An entry point whose function is given."""

    def load(self) -> Any:
        return {"nan": lambda t, r: [math.nan] * len(t), "above": lambda t, r: [2.0] * len(t),
                "few": lambda t, r: [0.5], "half": lambda t, r: [0.5] * len(t), "none": 3,
                "fails": lambda t, r: [t[99]],
                "told": lambda t, r, priors: [0.25 if one is None else 0.75 for one in priors]}[self.name]  # fmt: skip


def bring(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("nan", "above", "few", "half", "none", "fails", "told")
    monkeypatch.setattr(module, "outside_rewards", lambda: {one: _Own(one, "x", "radweave.rewards") for one in names})


def test_a_reward_of_another_package_gets_the_reports_of_priors_if_it_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bring(monkeypatch)
    both = Rewards({"told": 1.0, "half": 1.0}, TrainingTexts(TRAINING, LABELER))
    priors = ["The lungs are clear.", None, "The lungs are clear.", None, None, None]
    parts = both.parts(TEXTS, REFERENCES, priors)
    assert parts["told"].tolist() == [0.75, 0.25, 0.75, 0.25, 0.25, 0.25]
    assert parts["half"].tolist() == [0.5] * 6
    same = both.parts([TEXTS[0]] * 2, [REFERENCES[0]] * 2, priors[:2])["told"]
    assert same.tolist() == [0.75, 0.25], "equal texts of studies with other priors are not one"
    assert both.parts(TEXTS, REFERENCES)["told"].tolist() == [0.25] * 6


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nan", "no finite number in"),
        ("above", "no finite number in"),
        ("few", "not one reward for each text"),
        ("none", "is no function"),
        ("fails", "the reward failed .IndexError"),
    ],
)
def test_a_reward_of_another_package_that_is_no_reward_is_refused(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch)
    training = TrainingTexts(TRAINING, LABELER)
    assert Rewards({"half": 1.0}, training).parts(TEXTS, REFERENCES)["half"].tolist() == [0.5] * 6
    with pytest.raises(InputError, match=reason):
        Rewards({name: 1.0}, training).parts(TEXTS, REFERENCES)
