"""A stage of a few updates of a model that a test made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radweave.engine.loop import StageTrainer
from radweave.methods.stage import StageConfig


def short_stage(
    model: Any, stage: Mapping[str, Any], batches: Any, folder: Path, *, name: str = "report", **options: Any
) -> StageTrainer:
    """Its trainer, with no validation but what ``options`` say."""
    options.setdefault("validate", dict)
    return StageTrainer(
        model=model,
        stage=StageConfig.model_validate(stage),
        batches=batches,
        name=name,
        seed=0,
        folder=folder,
        fingerprint="f",
        **options,
    )
