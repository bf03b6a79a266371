"""Every size has bounds: one that is out of reach is refused in one line, before it takes memory."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen

from radweave.core.config import Config
from radweave.core.errors import InputError
from radweave.methods import resolve
from tests.every_module import import_all

UNBOUNDED: dict[str, str] = {}
"""Whole numbers without bounds, each with its reason."""
SIZES = ("ratio", "expansion")
"""Words in the name of a real number that multiplies a size."""


def configs(kind: type[Config]) -> set[type[Config]]:
    return {kind, *(deeper for child in kind.__subclasses__() for deeper in configs(child))}


def numbers(annotation: Any, bounds: tuple[Any, ...]) -> Iterator[tuple[type, tuple[Any, ...]]]:
    """Each number in an annotation with what bounds it."""
    if annotation in (int, float):
        yield annotation, bounds
    elif typing.get_origin(annotation) is typing.Annotated:
        yield from numbers(annotation.__origin__, bounds + flat(annotation.__metadata__))
    elif not (isinstance(annotation, type) and issubclass(annotation, Config)):
        for inner in typing.get_args(annotation):
            # Bounds of a tuple or mapping itself are not those of what it holds.
            holds = typing.get_origin(annotation) in (tuple, dict, list)
            endless = Ellipsis in typing.get_args(annotation) and not any(isinstance(mark, MaxLen) for mark in bounds)
            if endless and any(kind is int for kind, _ in numbers(inner, ())):
                yield int, ()
            elif inner is not Ellipsis:
                yield from numbers(inner, () if holds else bounds)


def flat(metadata: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(mark for item in metadata for mark in (getattr(item, "metadata", None) or [item]))


def bounded(bounds: tuple[Any, ...]) -> bool:
    return any(isinstance(mark, (Le, Lt)) for mark in bounds) and any(isinstance(mark, (Ge, Gt)) for mark in bounds)


def test_every_integer_and_ratio_field_has_bounds() -> None:
    import_all()
    observed, open_ended = 0, []
    for config in (kind for kind in configs(Config) if kind.__module__.startswith("radweave.")):
        for name, field in config.model_fields.items():
            for kind, bounds in numbers(field.annotation, flat(tuple(field.metadata))):
                if kind is float and not any(word in name for word in SIZES):
                    continue
                observed += 1
                if not bounded(bounds) and name not in UNBOUNDED:
                    open_ended.append(f"{config.__module__}.{config.__name__}.{name}")
    assert observed > 100
    assert sorted(open_ended) == []


@pytest.mark.parametrize(
    "change",
    [
        "data.image_size=20000",
        "data.image_size=1000000000",
        "data.max_tokens=1000000000",
        "data.ct.size=[20000,16,16]",
        "data.tokenizer.vocab_size=1000000000",
        "model.language_model.num_layers=1000000",
        "model.language_model.hidden_size=1000000000",
        "model.language_model.num_heads=0",
        "model.vision_encoder.hidden_sizes=[1000000000,16]",
        "model.vision_encoder.depths=[1000000,1]",
        "model.connector={kind: mlp, expansion: 1000000000.0}",
        "stages.report.batch_size=1000000000",
        "decoding.max_new_tokens=1000000000",
        "decoding.num_beams=1000000",
        "seed=-1",
    ],
)
def test_a_size_out_of_bounds_is_refused_in_one_line(change: str) -> None:
    field = change.split("=")[0]
    with pytest.raises(InputError, match=rf"{field}.*(less|greater) than or equal to|{field}.*less than") as caught:
        resolve("baseline", "tiny", [change])
    assert "\n" not in str(caught.value)


def test_a_minimum_length_above_the_maximum_names_both() -> None:
    with pytest.raises(InputError, match=r"min_new_tokens 200 is above max_new_tokens 96") as caught:
        resolve("baseline", "tiny", ["decoding.min_new_tokens=200"])
    assert "\n" not in str(caught.value)
    lengths = resolve("baseline", "tiny", ["decoding.min_new_tokens=200", "decoding.max_new_tokens=200"]).decoding
    assert (lengths.min_new_tokens, lengths.max_new_tokens) == (200, 200)
