"""RadGraph-F1: what two reports' graphs of entities and relations have in common.

Source: Delbrouck et al., "Improving the Factual Correctness of Radiology Report Generation with Semantic Rewards",
Findings of EMNLP 2022, Sec. 3; the three levels as in the radgraph package 0.1.18. A report's graph becomes a set, and
the score is the F1 of two sets:

    simple    (words, label) of every entity
    partial   (words, label, has a relation or not)
    complete  (words, label, relation, words of its object) per relation; (words, label) of an entity without any

Conventions of the package that are kept: the score is 0 where either graph is empty, also where both are; words are
compared as they are written, and in lower case only within a relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radweave.base.errors import InputError

LEVELS = ("simple", "partial", "complete")
RADGRAPH_DEFINITIONS = {
    f"RadGraph_{level}": f"RadGraph-F1, reward level {level}, mean over studies; 0 where either graph is empty"
    for level in LEVELS
}


@dataclass(frozen=True, slots=True)
class Entity:
    """Words first..last (inclusive) of a report, its label, and its relations as (name, key of the object)."""

    tokens: str
    label: str
    start: int
    end: int
    relations: tuple[tuple[str, str], ...] = ()


Graph = Mapping[str, Entity]


def graph_of(annotation: Mapping[str, Any]) -> dict[str, Entity]:
    """The graph in the package's annotation format: ``entities`` -> key -> tokens, label, start_ix, end_ix, relations.

    Raises:
        InputError: if a field is missing or a relation points to no entity.
    """
    try:
        graph = {
            str(key): Entity(
                str(entity["tokens"]),
                str(entity["label"]),
                int(entity["start_ix"]),
                int(entity["end_ix"]),
                tuple((str(name), str(target)) for name, target in entity["relations"]),
            )
            for key, entity in annotation["entities"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"not a RadGraph annotation: {error}", field="entities") from None
    for key, entity in graph.items():
        for _, target in entity.relations:
            if target not in graph:
                raise InputError("a relation points to no entity", field=f"entities.{key}", got=target)
    return graph


def reward_sets(graph: Graph) -> tuple[set[tuple[Any, ...]], ...]:
    """The sets that are compared at each of ``LEVELS``."""
    simple: set[tuple[Any, ...]] = set()
    partial: set[tuple[Any, ...]] = set()
    complete: set[tuple[Any, ...]] = set()
    for entity in graph.values():
        plain = (entity.tokens, entity.label)
        simple.add(plain)
        if not entity.relations:
            partial.add(plain)
            complete.add(plain)
            continue
        partial.add((*plain, True))
        for name, target in entity.relations:
            complete.add((entity.tokens.lower(), entity.label, name, graph[target].tokens.lower()))
    return simple, partial, complete


def radgraph_f1(hyp: Graph, ref: Graph) -> tuple[float, float, float]:
    """F1 at each of ``LEVELS``; 0 where either graph has no entity."""
    if not hyp or not ref:
        return 0.0, 0.0, 0.0
    simple, partial, complete = (
        _f1(ours, theirs) for ours, theirs in zip(reward_sets(hyp), reward_sets(ref), strict=True)
    )
    return simple, partial, complete


def best_radgraph_f1(hyp: Graph, refs: Sequence[Graph]) -> tuple[float, float, float]:
    """Against several references: the best at each level by itself."""
    simple, partial, complete = zip(*(radgraph_f1(hyp, ref) for ref in refs), strict=True)
    return max(simple), max(partial), max(complete)


def _f1(hyp: set[tuple[Any, ...]], ref: set[tuple[Any, ...]]) -> float:
    return 2.0 * len(hyp & ref) / (len(hyp) + len(ref))
