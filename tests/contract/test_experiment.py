"""How the parts of a model start."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radweave.core.errors import InputError
from radweave.methods import load_method, method_names, resolve
from radweave.methods.experiment import BuildContext


def with_adapters(method: str) -> list[tuple[str, str]]:
    """(preset, row) of all rows whose language model gets adapters."""
    result = []
    module = load_method(method)
    for preset in module.PRESETS:
        for row, overrides in module.ABLATIONS.items():
            try:
                experiment = resolve(method, preset, overrides)
            except InputError:  # a row for other parts than this preset has
                continue
            language_model = getattr(experiment.model, "language_model", None)
            if getattr(getattr(language_model, "lora", None), "kind", "none") != "none":
                result.append((preset, row))
    return result


def test_a_part_starts_by_the_seed_and_its_name_alone() -> None:
    def start(seed: int, name: str) -> tuple[float, ...]:
        words: Any = None  # no part here asks for the tokenizer
        return tuple(BuildContext(words, 32, seed=seed).part(name, lambda: torch.rand(4)).tolist())

    first = start(0, "connector")
    assert len({first, start(1, "connector"), start(0, "language_model"), start(1, "language_model")}) == 4
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    assert start(0, "connector") == first
    assert torch.equal(torch.rand(2), expected), "who builds a part keeps the random numbers that come next"


@pytest.mark.parametrize("method", method_names())
def test_adapters_stay_at_their_start_until_reports_are_learned(method: str) -> None:
    """A language model that is trained together with its adapters is another one once they are trained on."""
    for preset, row in with_adapters(method):
        stages = resolve(method, preset, load_method(method).ABLATIONS[row]).named_stages()
        before = {
            name: stage.finetune.get("language_model", "frozen") for name, stage in stages.items() if stage.epochs
        }
        assert before.pop("report") in ("lora", "frozen", "base"), (preset, row)
        assert set(before.values()) <= {"frozen", "base"}, (preset, row)


@pytest.mark.parametrize("method", method_names())
def test_every_ablation_is_a_row_of_a_table(method: str) -> None:
    """``radweave ablate`` runs tables alone; a decoding that differs is a row by its label."""
    module = load_method(method)
    rows = {row.ablation or row.label for table in module.TABLES.values() for row in table.rows}
    assert not module.ABLATIONS.keys() - rows - {"full", "w/o phantom start"}, "the start is of tiny alone"
