"""Stages that a model cannot run are refused before the first one runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radweave.core.errors import InputError
from radweave.engine.estimate import build_on_meta
from radweave.engine.plan import refuse_impossible_stages
from radweave.methods import resolve
from radweave.nn import decoding
from tests.toys import TOY_OVERRIDES, TOY_SIZES


def refuse(*overrides: str) -> None:
    experiment = resolve("baseline", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["baseline"], *overrides])
    refuse_impossible_stages(experiment, build_on_meta(experiment))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """On which devices compiling was tried; on each there is no compiler."""
    devices: list[str] = []

    def compiled(function: Any) -> Any:
        def call(tensor: torch.Tensor) -> Any:
            devices.append(tensor.device.type)
            raise RuntimeError("No working C++ compiler found")

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    return devices


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_decoding_without_a_compiler_is_refused_before_a_stage_runs(tried: list[str], mode: str) -> None:
    with pytest.raises(InputError, match="No working") as caught:
        refuse(f"decoding.compile={mode}")
    assert caught.value.field == "decoding.compile"
    assert "none" in str(caught.value.expected)
    assert len(tried) == 1
    assert "meta" not in tried, "a dry run asks for the device that the run would have"


def test_a_stage_without_a_compiler_is_refused_by_its_own_name(tried: list[str]) -> None:
    with pytest.raises(InputError, match="No working") as caught:
        refuse("stages.report.compiled=encoder")
    assert caught.value.field == "stages.report.compiled"
    assert "meta" not in tried


def test_uncompiled_stages_need_no_compiler(tried: list[str]) -> None:
    refuse()
    assert tried == []


def test_a_language_model_without_a_compilable_step_is_refused_before_a_stage_runs(
    tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"decoding\.compile.*cannot be compiled"):
        refuse("decoding.compile=default", "decoding.do_sample=true", "decoding.num_beams=2")
    monkeypatch.setattr(decoding, "FAMILIES", frozenset())
    with pytest.raises(InputError, match=r"decoding\.compile.*cannot be compiled"):
        refuse("decoding.compile=default")
    assert tried == []


def test_checking_the_stages_leaves_requires_grad_unchanged() -> None:
    experiment = resolve("baseline", "tiny", [*TOY_OVERRIDES, *TOY_SIZES["baseline"]])
    model = build_on_meta(experiment)
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 3 == 0)
    before = [parameter.requires_grad for parameter in model.parameters()]
    assert 0 < sum(before) < len(before)
    refuse_impossible_stages(experiment, model)
    assert [parameter.requires_grad for parameter in model.parameters()] == before
