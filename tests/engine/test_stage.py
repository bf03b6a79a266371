"""The optimiser: matrices decay, vectors do not, frozen parts are left out."""

from __future__ import annotations

from torch import nn

from radweave.methods.stage import OptimizerConfig, apply_finetune, build_optimizer


def test_matrices_decay_and_vectors_do_not() -> None:
    model = nn.Module()
    model.body = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv1d(4, 2, 1))
    model.frozen = nn.Linear(2, 2)
    apply_finetune(model, {"body": "full", "frozen": "frozen"})
    groups = build_optimizer(model, OptimizerConfig(weight_decay=0.3)).param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert {name: decay.get(id(parameter)) for name, parameter in model.named_parameters()} == {
        "body.0.weight": 0.3,
        "body.0.bias": 0.0,
        "body.1.weight": 0.0,
        "body.1.bias": 0.0,
        "body.2.weight": 0.3,
        "body.2.bias": 0.0,
        "frozen.weight": None,
        "frozen.bias": None,
    }


def test_the_optimiser_has_the_values_of_its_record() -> None:
    model = nn.Linear(2, 2)
    optimiser = build_optimizer(model, OptimizerConfig(learning_rate=0.25, betas=(0.3, 0.6)))
    assert {(group["lr"], group["betas"]) for group in optimiser.param_groups} == {(0.25, (0.3, 0.6))}
