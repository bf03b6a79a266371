"""Inputs of the decoder that a configuration of a method leaves without a token."""

from __future__ import annotations

import pytest
import torch
from method_toys import batch_of, example, toy_context, with_memory

from radweave.methods import resolve
from radweave.nn.prompt import Slot
from toys import TOY_OVERRIDES, TOY_SIZES

ABSENT = [
    ("dast", (), set()),
    ("dast", ("model.fusion=none",), {"fusion"}),
    ("dast", ("model.fusion=none", "model.retrieval=none"), {"fusion", "exemplar"}),
    ("am_mrg", (), set()),
    ("am_mrg", ("model.visual_memory=none",), {"regions"}),
    ("am_mrg", ("model.visual_memory=none", "model.report_memory=none"), {"regions", "reports"}),
    ("diffvp", (), set()),
    ("diffvp", ("model.difference=none",), {"difference"}),
    ("diffvp", ("model.difference=none", "model.diagnosis=none"), {"difference", "diagnosis"}),
    ("diffrgennet", (), set()),
    ("diffrgennet", ("model.difference=none",), {"difference"}),
    ("diffrgennet", ("model.retrieval=none",), {"similar", "difference"}),
    ("weave", (), set()),
]


@pytest.mark.parametrize(("method", "overrides", "expected"), ABSENT)
def test_absent_inputs_are_those_without_a_token(method: str, overrides: tuple[str, ...], expected: set[str]) -> None:
    context = toy_context(method)
    model = resolve(method, "tiny", [*TOY_OVERRIDES, *TOY_SIZES[method], *overrides]).model.build(context)
    examples = [example(context, number) for number in range(6)]
    with_memory(model, context, examples)
    read: dict[str, int] = {}

    def record(name: str, slot: Slot) -> Slot:
        read[name] = int(slot[1].sum())
        return slot

    torch.manual_seed(0)
    with model.reading_by(record):
        model.loss(batch_of(context, *examples), ("report",))
    assert set(read) == set(model.inputs)
    assert {name for name, tokens in read.items() if not tokens} == set(model.absent_inputs) == expected
