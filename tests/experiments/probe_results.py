"""Results of an exchange probe that were made up, for what is read from them."""

from __future__ import annotations

from radweave.experiments.probe import EXCHANGES, Cost, Drafts, Exchange, InputResult, LossResult, Probe

LOUD, MUTE = Cost(0.2, 0.1, 0.3), Cost(0.0, -0.1, 0.1)


def input_result(
    name: str = "image",
    *,
    cost: Cost,
    alone: Cost | None = None,
    silent: str = "",
    part: str = "tokens",
    covered_by: tuple[str, ...] = (),
    because: str = "",
) -> InputResult:
    costs: dict[Exchange, Cost] = dict.fromkeys(EXCHANGES, cost)
    drafts = Drafts(Cost(0.5, 0.4, 0.6), 0.2, Cost(-0.1, -0.2, 0.0), 0.3, Cost(-0.4, -0.5, 0.1))
    return InputResult(name, part, silent, 0.5, costs, alone or cost, drafts, covered_by, because)


def loss_result(name: str, *, gradient: float, moved: float, decoder: bool = False, silent: str = "") -> LossResult:
    return LossResult("report", name, silent, gradient, moved, -0.01, decoder)


def probe_of(inputs: tuple[InputResult, ...], losses: tuple[LossResult, ...]) -> Probe:
    return Probe("made_up", "test", 20, 1.5, 0.3, 0.4, inputs, losses, 1.0, "weights", "data")
