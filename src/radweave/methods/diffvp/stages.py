"""The parts of the model by name, and the stages that train them."""

from __future__ import annotations

from pydantic import model_validator

from radweave.config import Config
from radweave.train.stage import StageConfig, Trainability

PARTS = (
    "vision_encoder",
    "vision_head",
    "word_head",
    "diagnosis",
    "pool",
    "resampler",
    "difference",
    "auxiliary_head",
    "connector",
    "language_model",
)


def training(**trained: Trainability) -> dict[str, Trainability]:
    """All parts frozen but those named."""
    frozen: dict[str, Trainability] = dict.fromkeys(PARTS, "frozen")
    return frozen | trained


class DiffvpStages(Config):
    """An encoder from nothing; E; latents and a language model from nothing (each passed over with 0 epochs); reports.

    While reports are learned the encoder must be frozen, since the pool holds its tokens, and so must E.
    """

    vision: StageConfig
    diagnosis: StageConfig
    latents: StageConfig = StageConfig(
        finetune=training(resampler="full", auxiliary_head="full"), losses={"auxiliary": 1.0}, epochs=0
    )
    language: StageConfig
    report: StageConfig

    @model_validator(mode="after")
    def _frozen_in_report(self) -> DiffvpStages:
        for part in ("vision_encoder", "diagnosis"):
            if self.report.finetune.get(part, "frozen") != "frozen":
                raise ValueError(f"stages.report.finetune.{part} must be frozen")
        return self
