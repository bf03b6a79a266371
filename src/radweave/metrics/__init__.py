"""Scores that can be trusted: named protocols, language and clinical metrics, intervals, floors, honesty rows."""

from __future__ import annotations

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
