"""Inputs of the decoder that a configuration of a method leaves without a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from radweave.core.batch import Batch
from radweave.methods import resolve
from radweave.methods.model import ReportModel
from radweave.nn.prompt import Slot
from tests.methods.method_toys import batch_of, example, toy_context, with_memory
from tests.toys import TOY_OVERRIDES, TOY_SIZES

ABSENT = [
    ("dast", (), set()),
    ("dast", ("model.fusion=none",), {"fusion"}),
    ("dast", ("model.fusion=none", "model.retrieval=none"), {"fusion", "exemplar"}),
    ("am_mrg", ("model.visual_memory=none", "model.report_memory=none"), {"regions", "reports"}),
    ("diffrgennet", (), set()),
    ("diffrgennet", ("model.difference=none",), {"difference"}),
    ("diffrgennet", ("model.retrieval=none",), {"similar", "difference"}),
]


def tokens_read(model: ReportModel, batch: Batch) -> dict[str, int]:
    """Tokens of each input that the decoder reads while it learns reports."""
    read: dict[str, int] = {}

    def record(name: str, slot: Slot) -> Slot:
        read[name] = int(slot[1].sum())
        return slot

    torch.manual_seed(0)
    with model.reading_by(record):
        model.loss(batch, ("report",))
    return read


@pytest.mark.parametrize(("method", "overrides", "expected"), ABSENT)
def test_absent_inputs_are_those_without_a_token(method: str, overrides: tuple[str, ...], expected: set[str]) -> None:
    context = toy_context(method)
    model = resolve(method, "tiny", [*TOY_OVERRIDES, *TOY_SIZES[method], *overrides]).model.build(context)
    examples = [example(context, number) for number in range(6)]
    read = tokens_read(with_memory(model, context, examples), batch_of(context, *examples))
    assert set(read) == set(model.inputs)
    assert {name for name, tokens in read.items() if not tokens} == set(model.absent_inputs) == expected


@pytest.mark.parametrize("method", ["dast", "diffrgennet"])
def test_every_source_is_read_once_and_changes_its_input_alone(method: str) -> None:
    """With zeros in place of a source its input differs; images and texts of the study stay as they are."""
    context = toy_context(method)
    model = resolve(method, "tiny", [*TOY_OVERRIDES, *TOY_SIZES[method]]).model.build(context)
    examples = [example(context, number) for number in range(6)]
    batch = batch_of(context, *examples)
    with_memory(model, context, examples).eval()

    def slots_read(zeroed: str) -> tuple[dict[str, Slot], list[str]]:
        read: dict[str, Slot] = {}
        sources: list[str] = []

        def record(name: str, slot: Slot) -> Slot:
            read[name] = slot
            return slot

        def source(name: str, slot: Slot) -> Slot:
            sources.append(name)
            return (torch.zeros_like(slot[0]), slot[1]) if name == zeroed else slot

        with torch.no_grad(), model.reading_by(record, source):
            model.report_nats(batch)
        return read, sources

    own, sources = slots_read("")
    assert sorted(sources) == sorted(model.input_sources)
    assert model.reader is model.source_reader is None
    for name, declared in model.input_sources.items():
        other, _ = slots_read(name)
        assert not torch.allclose(own[declared.of][0], other[declared.of][0])
        touched = {declared.of, "diseases"} if name == "cases" else {declared.of}  # disease heads read the cases too
        untouched = set(own) - touched
        assert untouched
        assert all(torch.equal(own[one][0], other[one][0]) for one in untouched)


def test_diffvp_without_difference_and_diagnosis_reads_the_image_alone() -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["diffvp"], "model.difference=none", "model.diagnosis=none"]
    model = resolve("diffvp", "tiny", overrides).model.build(replace(toy_context("diffvp"), volume_size=(8, 16, 16)))
    scans = Batch(
        study_ids=["a", "b"],
        patient_ids=["a", "b"],
        volume=torch.rand(2, 1, 8, 16, 16),
        view_mask=torch.ones(2, 1, dtype=torch.bool),
        view_ids=torch.zeros(2, 1, dtype=torch.long),
        input_ids=torch.randint(5, 50, (2, 7)),
        labels=torch.randint(5, 50, (2, 7)),
        class_labels=torch.randint(0, 4, (2, 14)),
    )
    read = tokens_read(model, scans)
    assert {name for name, tokens in read.items() if not tokens} == set(model.absent_inputs)
    assert model.absent_inputs == {"difference", "diagnosis"}


def test_no_protocol_asks_for_an_attribute_that_may_be_a_part() -> None:
    """From Python 3.12 on, isinstance looks a protocol's attributes up without a module's own lookup of its parts."""
    from radweave.methods import model as contract

    protocols = [value for value in vars(contract).values() if getattr(value, "_is_runtime_protocol", False)]
    assert len(protocols) > 5
    for protocol in protocols:
        fields = {name for kind in protocol.__mro__ for name in vars(kind).get("__annotations__", ())}
        numbers = {"dim", "channels"}
        assert fields <= numbers, f"{protocol.__name__} asks for {fields - numbers}"
