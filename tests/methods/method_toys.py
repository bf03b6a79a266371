"""Toy models and studies of a method, for tests of its equations without any training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from radweave.core.batch import Batch
from radweave.core.ontology import CHEXPERT14
from radweave.data.loader import Example, collate
from radweave.data.tokenizer import encode
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.model import ReportModel
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

ModelT = TypeVar("ModelT", bound=ReportModel)


def toy_context(method: str) -> BuildContext:
    experiment = resolve(method, "tiny", [*TOY_OVERRIDES, *TOY_SIZES[method]])
    tokenizer = experiment.data.tokenizer.build(list(TOY_REPORTS.values()) * 4)
    return BuildContext(tokenizer, experiment.data.image_size, CHEXPERT14)


def built(method: str, kind: type[ModelT], context: BuildContext, overrides: Sequence[str]) -> ModelT:
    model = resolve(method, "tiny", [*TOY_OVERRIDES, *TOY_SIZES[method], *overrides]).model.build(context)
    assert isinstance(model, kind)
    return model.eval()


def example(context: BuildContext, index: int, *, views: int = 1, patient: str | None = None) -> Example:
    side = "left" if index % 2 else "right"
    pixels = np.random.default_rng(index).integers(0, 255, (views, 32, 32)).astype(np.uint8)
    return Example(
        study_id=f"s{index}",
        patient_id=patient or f"p{index}",
        source=pixels,
        rows=tuple(range(views)),
        view_ids=tuple(range(1, views + 1)),
        token_ids=(*encode(context.tokenizer, TOY_REPORTS[side]), int(context.tokenizer.eos_token_id)),
        class_states=tuple((index + number) % 4 for number in range(14)),
        report=TOY_REPORTS[side],
    )


def batch_of(context: BuildContext, *examples: Example) -> Batch:
    return collate(examples, pad_id=int(context.tokenizer.pad_token_id))


class View:
    """As much of a training view as the methods ask for."""

    def __init__(self, context: BuildContext, examples: Sequence[Example]) -> None:
        self.context, self.examples = context, examples
        self.reports = [example.report for example in examples]
        self.class_states = torch.tensor([example.class_states for example in examples])

    def batches(self, batch_size: int = 3) -> Iterator[Batch]:
        for start in range(0, len(self.examples), batch_size):
            yield batch_of(self.context, *self.examples[start : start + batch_size])


def with_memory(model: ModelT, context: BuildContext, examples: Sequence[Example]) -> ModelT:
    model.set_memories(model.build_memories("report", View(context, examples)))  # type: ignore[arg-type]
    return model
