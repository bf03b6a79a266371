"""The stages that train the model."""

from __future__ import annotations

from pydantic import model_validator

from radweave.contract.sizes import EyesFirstStages
from radweave.contract.stage import StageConfig, full


class DiffvpStages(EyesFirstStages):
    """An encoder from nothing; E; latents and a language model from nothing (each passed over with 0 epochs); reports.

    While reports are learned the encoder must be frozen, since the pool holds its tokens, and so must E.
    """

    vision: StageConfig
    diagnosis: StageConfig
    latents: StageConfig = StageConfig(
        finetune=full("resampler", "auxiliary_head"), losses={"auxiliary": 1.0}, epochs=0
    )
    language: StageConfig
    report: StageConfig

    @model_validator(mode="after")
    def _frozen_in_report(self) -> DiffvpStages:
        for part in ("vision_encoder", "diagnosis"):
            if part in self.report.trained:
                raise ValueError(f"stages.report.finetune.{part} must be frozen")
        return self
