"""Scores that can be trusted: named protocols, language and clinical metrics, intervals, floors, honesty rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radweave.metrics.evaluate import Options, evaluate_pairs
    from radweave.metrics.pairs import Pair, PairsFile, pair_up, read_pairs
    from radweave.metrics.protocols import PROTOCOLS, EvalProtocol, get_protocol
    from radweave.metrics.records import ClinicalKey, Score
    from radweave.metrics.result import Evaluation

__all__ = [
    "PROTOCOLS",
    "ClinicalKey",
    "EvalProtocol",
    "Evaluation",
    "Options",
    "Pair",
    "PairsFile",
    "Score",
    "evaluate_pairs",
    "get_protocol",
    "pair_up",
    "read_pairs",
]
# Names of each module, imported at first use: drafting needs some of the modules, and none of the scores.
_NAMES = {
    "evaluate": ("Options", "evaluate_pairs"),
    "pairs": ("Pair", "PairsFile", "pair_up", "read_pairs"),
    "protocols": ("PROTOCOLS", "EvalProtocol", "get_protocol"),
    "records": ("ClinicalKey", "Score"),
    "result": ("Evaluation",),
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for by its name."""
    if name not in _PLACES:
        raise AttributeError(f"module 'radweave.metrics' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"radweave.metrics.{_PLACES[name]}"), name)
