"""Ablations: each source alone, all but each, and without stack, drafting or language model. No paper prints them."""

from __future__ import annotations

from radweave.methods.tables import Row, Table, parts_table

SILENT = {
    "dense": "model.dense.is_source=false",
    "tokens": "model.tokens=none",
    "difference": "model.difference=none",
    "kernels": "model.kernels=none",
    "recall": "model.recall.is_source=false",
    "cases": "model.cases=none",
    "change": "model.change=none",
}
"""Override that switches each source off. The dense head trains the members and the recalled studies decide the wording
in any case. ``change`` adds evidence to studies with a prior alone; the others keep the frequencies of the classes."""

ALONE = {f"{name} alone": [how for other, how in SILENT.items() if other != name] for name in SILENT}
WITHOUT = {f"w/o {name}": [how] for name, how in SILENT.items()}
NO_LANGUAGE_MODEL = "w/o language model"

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    **ALONE,
    **WITHOUT,
    "w/o stack": ["model.stack=equal"],
    "w/o drafting": ["decoding.kind=likelihood"],
    "one threshold": ["decoding.expected_utility.thresholds=pooled"],
    "contradictions left": ["decoding.expected_utility.consistent=false"],
    "without prior": ["data.priors=false"],
    NO_LANGUAGE_MODEL: ["model.language_model=none"],
    "two members": ["model.members=2"],
}

AT_DECODING = {
    "w/o drafting": ("kind=likelihood",),
    "one threshold": ("expected_utility.thresholds=pooled",),
    "contradictions left": ("expected_utility.consistent=false",),
}
"""A run of which the decoding alone differs is trained once."""
ROWS = tuple(
    Row(name, run_of="full", decoding=AT_DECODING[name]) if name in AT_DECODING else Row(name, name)
    for name in ABLATIONS
    if name not in ("full", "two members")
)
PARTS = Table(
    title="weave: what its sources and its parts add",
    rows=(Row("full", headline=True), *ROWS),
    reference="full",
    note=parts_table("weave", ()).note,
    kind="ours",
)

TABLES: dict[str, Table] = {"parts": PARTS}
