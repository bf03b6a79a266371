"""weave: nothing that is fitted to training studies hears of a study from itself, its patient or its own fold."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from radweave.core.errors import InputError
from radweave.data.loader import collate
from radweave.labels import NO_FINDING
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.model import TrainingView
from radweave.methods.weave import model as evidence
from radweave.methods.weave.model import STUDIES, Forward, Gathered, WeaveModel, gather
from radweave.methods.weave.stack import Stack
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import DenseHead
from tests.made_view import SIZE, made_view
from tests.toys import TOY_OVERRIDES, TOY_SIZES

OVERRIDES = [*TOY_OVERRIDES, *TOY_SIZES["weave"], "model.kernels.descriptors.aligned=false"]
PATIENTS = ("p0", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8")
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def model() -> WeaveModel:
    """As it begins: nothing of it is trained."""
    torch.manual_seed(0)
    experiment = resolve("weave", "tiny", OVERRIDES)
    tokenizer = experiment.data.tokenizer.build(["There is an opacity.", "No opacity."] * 4)
    made = experiment.model.build(BuildContext(tokenizer, SIZE, ("c0", "c1"), seed=0)).eval()
    assert isinstance(made, WeaveModel)
    return made


STATES = tuple(tuple(1 + int(RNG.random() < 0.5) for _ in range(2)) for _ in PATIENTS)


def view(*, flip: int | None = None, **changes: Any) -> TrainingView:
    states = [tuple(3 - state for state in row) if number == flip else row for number, row in enumerate(STATES)]
    return made_view(PATIENTS, states, **changes)


@pytest.fixture(scope="module")
def gathered(model: WeaveModel) -> Gathered:
    return gather(model, view())


def test_no_source_tells_of_a_study_from_another_one_of_its_patient(model: WeaveModel, gathered: Gathered) -> None:
    flipped = gather(model, view(flip=1))
    assert np.array_equal(flipped.out_of_fold.scores[0], gathered.out_of_fold.scores[0])
    assert not np.allclose(flipped.out_of_fold.scores[2:], gathered.out_of_fold.scores[2:]), "to strangers it speaks"
    assert not gathered.weights[0][:2].any()
    assert gathered.out_of_fold.patients[0] == gathered.out_of_fold.patients[1]


def test_members_score_their_own_fold_and_folds_split_patients(model: WeaveModel, gathered: Gathered) -> None:
    assert gathered.out_of_fold.folds.tolist() == model.folds.of(PATIENTS).tolist()
    assert np.array_equal(gathered.out_of_fold.withheld, gathered.out_of_fold.folds)
    assert set(gathered.out_of_fold.folds.tolist()) == {0, 1}


def test_dense_heads_take_their_vocabulary_from_their_training_fold(
    model: WeaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    took: list[list[list[int]]] = []

    def learn(self: DenseHead, tokens: Iterator[Any], states: torch.Tensor) -> None:
        took.append(states.tolist())

    monkeypatch.setattr(DenseHead, "learn_targets", learn)
    model.dense.fit(view(), model.folds)
    folds = model.folds.of(PATIENTS).tolist()
    assert took == [[list(STATES[row]) for row, fold in enumerate(folds) if fold != number] for number in range(3)]
    assert len(took[2]) == len(PATIENTS), "the full member learns from all"


def test_no_finding_is_never_asserted_and_a_threshold_is_met_from_it_on() -> None:
    fake: Any = SimpleNamespace(classes=("Edema", NO_FINDING, "Fracture"))
    stack = Stack({"dense": "log_odds"}, ["dense"], 3)
    stack.threshold.fill_(0.5)
    assert WeaveModel.asserted(fake, np.array([[0.0, 9.0, -0.1]]), stack).tolist() == [[True, False, False]]


def test_a_new_study_queries_the_bank_without_its_patient(model: WeaveModel, gathered: Gathered) -> None:
    model.set_memories({STUDIES: gathered.bank})
    model.stack.fit(gathered.out_of_fold, model.weighing, np.ones(2, dtype=bool))
    example = view().examples[0]
    (own,) = model.evidence_for(collate([example], pad_id=0))
    assert not own.weights[:2].any()
    model.memory = None


def test_rows_of_a_study_s_own_patient_are_barred(model: WeaveModel, gathered: Gathered) -> None:
    model.set_memories({STUDIES: gathered.bank})
    studies = [view().examples[row] for row in (0, 2)]
    barred = Forward(model, collate(studies, pad_id=0)).barred
    model.memory = None
    assert barred.tolist() == [[patient == study.patient_id for patient in PATIENTS] for study in studies]


def of_fold(model: WeaveModel, fold: int, number: int) -> list[str]:
    """Names of patients whom the seed deals into a fold."""
    names = (f"x{count}" for count in range(1000))
    return [name for name in names if model.folds.of([name]).tolist() == [fold]][:number]


def test_a_fold_of_all_patients_but_one_is_scored_and_worded(model: WeaveModel) -> None:
    (alone,), (other,) = (of_fold(model, fold, 1) for fold in (0, 1))
    states = [(1, 2), (2, 1), (1, 1), (2, 2)]
    for patients in ([alone, other, other, other], [other, other, other, alone]):
        result = gather(model, made_view(patients, states))
        assert np.isfinite(result.out_of_fold.scores).all()
        assert [weights.sum() for weights in result.weights] == pytest.approx([1.0] * 4)


def test_in_training_a_patient_queries_only_the_member_trained_without_it(model: WeaveModel) -> None:
    outside_fold = [*of_fold(model, 0, 1), *of_fold(model, 1, 1)]
    batch = collate(made_view(outside_fold, [(1, 2), (2, 1)]).examples, pad_id=0)
    model.train()
    queried = Forward(model, batch).members
    model.eval()
    assert queried[:, :2].tolist() == [[True, False], [False, True]]
    assert not queried[:, 2:].any(), "the full member saw them"
    assert Forward(model, batch).members.all(), "in use they are new"


def test_the_stack_gets_the_members_actually_queried(model: WeaveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = evidence.own_members
    monkeypatch.setattr(evidence, "own_members", lambda folds, number: honest((folds + 1) % 2, number))
    with pytest.raises(InputError, match="trained on"):
        gather(model, view())


def test_findings_come_from_the_full_stack_if_studies_are_stored_else_from_the_bare_one(
    model: WeaveModel, gathered: Gathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their thresholds differ: nothing reaches that of the stack, and everything that of the bare one."""
    result: list[bool] = []
    real = WeaveModel.asserted

    def watched(self: WeaveModel, log_odds: Any, stack: Stack) -> torch.Tensor:
        findings = real(self, log_odds, stack)
        result.append(bool(findings.all()))
        assert bool(findings.any()) == bool(findings.all())
        return findings

    monkeypatch.setattr(WeaveModel, "asserted", watched)
    monkeypatch.setattr("radweave.methods.weave.model.shown_sources", lambda *_: {})
    batch = collate(view().examples[:3], pad_id=0)
    model.stack.fit(gathered.out_of_fold, model.weighing, np.ones(2, dtype=bool))
    learned = gathered.out_of_fold.of([number for number, name in enumerate(model.sources) if name in evidence.LEARNED])
    model.bare.fit(learned, model.weighing, np.ones(2, dtype=bool))
    retained = {name: value.clone() for name, value in model.state_dict().items() if "threshold" in name}
    model.stack.threshold.fill_(2.0)
    model.bare.threshold.fill_(-1.0)
    brief = DecodingConfig(max_new_tokens=1)
    with torch.no_grad():
        model.to_write(batch)
        model.loss(batch, ["report"])
        model.memory = model.read(gathered.bank)
        model.to_write(batch)
        model.propose(batch, model.evidence_for(batch), brief)
    model.memory = None
    model.load_state_dict(retained, strict=False)
    assert result == [True, True, False, False, False, False]
