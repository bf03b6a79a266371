"""Figures over the validation split are means over studies, they change nothing, and one of them decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from radweave.core.batch import Batch
from radweave.core.ontology import CHEXPERT14
from radweave.data.cache.images import PixelCache
from radweave.data.dataset import Dataset
from radweave.data.examples import PreparedSplit
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import BpeTokenizerConfig, encode
from radweave.engine.stages import Training, TrainingWatch, validate
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext, Experiment
from radweave.methods.model import ReportModel
from radweave.methods.stage import StageConfig
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

Figures = dict[str, float]


class ByNumber(nn.Module):
    """The loss of study ``s7`` is 7."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        return {term: torch.tensor([float(name[1:]) for name in batch.study_ids]).mean() for term in terms}


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 7])
def test_a_last_batch_weighs_by_its_studies(toy_dataset: Dataset, tmp_path: Path, batch_size: int) -> None:
    experiment = resolve("baseline", "tiny", [])
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(["There is an opacity."] * 4)
    pixels = np.zeros((7, 8, 8), np.uint8)
    examples = [Example(f"s{number**2}", "p", pixels, (number,), (1,), (5,)) for number in range(7)]
    cache = PixelCache(pixels, {}, {})
    training = Training(
        experiment, toy_dataset, tmp_path, cache, tokenizer, (), ByNumber(), "f", TrainingWatch()
    )  # fmt: skip
    training.splits["val"] = PreparedSplit(examples)
    stage = experiment.named_stages()["report"]
    stage = stage.model_copy(update={"batch_size": batch_size, "losses": {"report": 2.0}, "select": "loss"})
    assert validate(training, stage)["loss"] == pytest.approx(2 * sum(number**2 for number in range(7)) / 7)


def validated(model: ReportModel, experiment: Experiment, examples: list[Example], **changes: object) -> Figures:
    """The figures of a model in the stage that learns reports."""
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    training = Training(
        experiment, None, None, None, tokenizer, CHEXPERT14, model, "f", TrainingWatch()  # type: ignore[arg-type]
    )  # fmt: skip
    training.splits["val"] = PreparedSplit(examples)
    return validate(training, experiment.named_stages()["report"].model_copy(update=changes))


def studies(context: BuildContext, number: int) -> list[Example]:
    """Studies of noise with reports, and labels that are positive now and then."""
    ids = (*encode(context.tokenizer, TOY_REPORTS["left"]), int(context.tokenizer.eos_token_id))
    pixels = np.random.default_rng(0).integers(0, 255, (number, 32, 32)).astype(np.uint8)
    return [
        Example(
            f"s{row}", f"p{row}", pixels, (row,), (1,), ids,
            class_states=tuple((row + place) % 4 for place in range(14)), report=TOY_REPORTS["left"],
        )
        for row in range(number)
    ]  # fmt: skip


def adaptive() -> tuple[ReportModel, Experiment, BuildContext]:
    """A model whose class prior moves in every step of training."""
    experiment = resolve("diffrgennet", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["diffrgennet"]])
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    context = BuildContext(tokenizer, experiment.data.image_size, CHEXPERT14)
    return experiment.model.build(context), experiment, context


def test_validation_changes_nothing_of_a_model_whose_prior_moves_in_training() -> None:
    model, experiment, context = adaptive()
    examples = studies(context, 5)
    terms = tuple(experiment.named_stages()["report"].losses)
    prior = model.diseases.prior.clone()  # type: ignore[union-attr,operator]
    model.train().loss(collate(examples, pad_id=0), terms)
    assert not torch.equal(model.diseases.prior, prior), "one step moves it"  # type: ignore[union-attr,arg-type]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # Left in training mode, as a step leaves it.
    first, second = (validated(model.train(), experiment, examples) for _ in range(2))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert first == second


def test_a_model_that_writes_its_state_in_validation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model, experiment, context = adaptive()
    loss = type(model).loss

    def counting(self: ReportModel, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        self.diseases.prior.mul_(1.0)  # type: ignore[union-attr,operator]
        return loss(self, batch, terms)

    monkeypatch.setattr(type(model), "loss", counting)
    with pytest.raises(AssertionError, match=r"validation has written diseases\.prior"):
        validated(model, experiment, studies(context, 3))


def test_the_report_loss_selects_and_other_terms_are_logged() -> None:
    model, experiment, context = adaptive()
    report = experiment.named_stages()["report"]
    figures = validated(model, experiment, studies(context, 5))
    assert set(figures) == {"loss", *report.losses}
    assert figures["loss"] == pytest.approx(sum(weight * figures[name] for name, weight in report.losses.items()))
    assert report.selected_by == "report"
    assert report.lower_is_better
    heavier = validated(model, experiment, studies(context, 5), losses={**report.losses, "disease": 40.0})
    assert heavier["report"] == figures["report"]
    assert heavier["loss"] > figures["loss"] + 1
    assert StageConfig(finetune={}, losses={"words": 1.0}).selected_by == "loss"
    assert StageConfig(finetune={}, losses={"report": 1.0}, select="last").selected_by is None
