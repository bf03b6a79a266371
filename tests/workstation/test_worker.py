"""A study that the model refuses costs no other study its draft, and not the process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from radweave.core.errors import InputError, UnusableModelError
from radweave.workstation.inference import InferenceModel


def refusing(error: InputError) -> tuple[Any, list[list[str]]]:
    """An inference whose model refuses every batch that has "bad" in it, and the batches it got."""
    batches: list[list[str]] = []

    def reports(examples: list[str], *, batch_size: int) -> list[str]:
        assert batch_size == len(examples)
        batches.append(examples)
        if "bad" in examples:
            raise error
        return [f"of {one}" for one in examples]

    made = object.__new__(InferenceModel)
    made.predictor = SimpleNamespace(reports=reports)  # type: ignore[assignment]
    return made, batches


def test_a_batch_refused_by_the_model_is_drafted_one_by_one() -> None:
    refusal = InputError("too few slices")
    inference, batches = refusing(refusal)
    assert inference._reports(["a", "bad", "b"]) == ["of a", refusal, "of b"]
    assert batches == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_an_unusable_model_refuses_all_studies_at_once() -> None:
    inference, batches = refusing(UnusableModelError("no finite weights"))
    with pytest.raises(UnusableModelError):
        inference._reports(["a", "bad"])
    assert batches == [["a", "bad"]]
