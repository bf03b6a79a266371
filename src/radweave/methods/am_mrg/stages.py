"""The parts of the model by name, and the stages that train them."""

from __future__ import annotations

from radweave.config import Config
from radweave.train.stage import StageConfig, Trainability

PARTS = (
    "vision_encoder",
    "query_former",
    "heads",
    "word_head",
    "text_encoder",
    "visual_memory",
    "report_memory",
    "connector",
    "query_projection",
    "language_model",
)


def training(**trained: Trainability) -> dict[str, Trainability]:
    """All parts frozen but those named."""
    frozen: dict[str, Trainability] = dict.fromkeys(PARTS, "frozen")
    return frozen | trained


class AmMrgStages(Config):
    """Disease tokens; language from reports (off unless given epochs); then the memories and report generation."""

    disease: StageConfig
    language: StageConfig = StageConfig(finetune=training(language_model="full"), losses={"text": 1.0}, epochs=0)
    report: StageConfig
