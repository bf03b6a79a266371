"""What wrote a draft, as every record of the draft has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radweave.base.hashes import sha256_json
from radweave.hospital.finished import Model
from radweave.runs.folder import RunCard


def model_facts(card: RunCard) -> dict[str, Any]:
    """As JSON values. ``bank`` is one hash over all files with training reports, ``files`` one over all of the run."""
    banks = {name: kept for name, kept in card.files.items() if name.startswith(("memories/", "drafting/"))}
    return {
        "method": card.method, "preset": card.preset, "weights": card.files.get("weights.safetensors"),
        "bank": sha256_json(banks) if banks else None, "radweave": card.versions["radweave"],
        "files": sha256_json(dict(card.files)),
    }  # fmt: skip


def model_from(facts: Mapping[str, Any]) -> Model:
    """From what a draft's record has; of one that has no hash over all files, a hash of what it has."""
    return Model(
        str(facts.get("method", "unknown")),
        str(facts.get("preset", "unknown")),
        str(facts.get("radweave", "unknown")),
        str(facts.get("files") or sha256_json(dict(facts))),
    )
