"""Scores that can be trusted: named protocols, language and clinical metrics, intervals, floors, honesty rows."""

from __future__ import annotations

from radweave.evaluation.evaluate import Options, evaluate_pairs
from radweave.evaluation.pairs import Pair, PairsFile, pair_up, read_pairs
from radweave.evaluation.protocols import PROTOCOLS, EvalProtocol, get_protocol
from radweave.evaluation.records import ClinicalKey, Score
from radweave.evaluation.result import Evaluation

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
