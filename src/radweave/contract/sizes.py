"""What the presets of several methods share: how studies are read at each size, and stages in one line."""

from __future__ import annotations

from collections.abc import Mapping

from radweave.contract.experiment import DataConfig, Stages
from radweave.contract.stage import OptimizerConfig, StageConfig, Trainability, full
from radweave.data.augmentation import LightAugmentation
from radweave.data.ct import CtPreprocessing
from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig

TINY_XRAY = DataConfig(
    image_size=144,
    max_views=4,
    max_tokens=96,
    tokenizer=BpeTokenizerConfig(vocab_size=1200),
    augmentation=LightAugmentation(cutout=0.25),
    dropped_views=0.2,
)
TINY_CT = TINY_XRAY.model_copy(
    update={
        "image_size": 128,
        "dropped_views": 0.0,
        "ct": CtPreprocessing(size=(32, 64, 64), fit="resize", window_hu=(-1000, 200)),
        "label_set": "ct18",
        "max_tokens": 160,
        "augmentation": LightAugmentation(contrast=0.04),
    }
)
MANY_FINDINGS = ExpectedUtilityConfig(further_findings=6)
"""Drafts of scans, whose reports state more findings than those of radiographs."""
SMALL_XRAY = DataConfig(
    image_size=224, max_tokens=128, tokenizer=BpeTokenizerConfig(vocab_size=8000), augmentation=LightAugmentation()
)

# The decoding of R2GenGPT, which several papers take over.
R2GENGPT_DECODING = DecodingConfig(
    num_beams=3, min_new_tokens=80, max_new_tokens=120, repetition_penalty=2.0, length_penalty=2.0
)
# Every linear map of a Llama layer: a decoder from nothing has not seen enough to be bent by two of them.
ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


# Off unless given epochs: an encoder from nothing learns which words go with an image (radweave/nn/word_head.py), and
# a decoder from nothing learns language from reports alone, where a preset gives it passes.
LANGUAGE = StageConfig(finetune=full("language_model"), losses={"text": 1.0}, epochs=0)
WORDS = StageConfig(finetune=full("vision_encoder", "word_head"), losses={"words": 1.0}, epochs=0)


# The first stage of the tiny presets for radiographs, the same for every method, so that the runs of all of them on a
# data set train it once; see docs/eyes.md.
EYES_STAGE = StageConfig(
    finetune=full("vision_encoder", "word_head"),
    losses={"words": 1.0},
    optimizer=OptimizerConfig(learning_rate=1e-3, weight_decay=0.05, warmup_steps=100, final_ratio=0.01),
    epochs=14,
    batch_size=32,
    precision="auto",
    ema=0.99,
    select="last",
)


class EyesFirstStages(Stages):
    """An encoder learns from classes and words before anything else (off unless given epochs)."""

    eyes: StageConfig = WORDS


class ReportStages(Stages):
    """Report generation alone."""

    report: StageConfig


class VisionFirstStages(EyesFirstStages):
    """Words from images, language from reports (both off unless given epochs), then report generation."""

    vision: StageConfig = WORDS
    language: StageConfig = LANGUAGE
    report: StageConfig


class DiseaseFirstStages(EyesFirstStages):
    """Disease tokens; language from reports (off unless given epochs); then report generation."""

    disease: StageConfig
    language: StageConfig = LANGUAGE
    report: StageConfig


def published(max_tokens: int) -> DataConfig:
    """Radiographs of 224 pixels, and the tokenizer of the language model's checkpoint."""
    return DataConfig(image_size=224, max_tokens=max_tokens, tokenizer=PretrainedTokenizerConfig())


def stage(
    trained: Mapping[str, Trainability],
    losses: Mapping[str, float],
    schedule: OptimizerConfig,
    *,
    epochs: int,
    batch_size: int = 16,
    augment: bool = True,
) -> StageConfig:
    """A stage: what trains, on which losses, how fast and for how long."""
    return StageConfig(
        finetune=dict(trained),
        losses=dict(losses),
        optimizer=schedule,
        epochs=epochs,
        batch_size=batch_size,
        augment=augment,
    )


def warm(learning_rate: float, warmup_steps: int, final_ratio: float = 0.05) -> OptimizerConfig:
    """A learning rate that is reached after some steps and then decays."""
    return OptimizerConfig(learning_rate=learning_rate, warmup_steps=warmup_steps, final_ratio=final_ratio)
