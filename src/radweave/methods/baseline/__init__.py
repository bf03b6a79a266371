"""Encoder, connector, language model: the Baseline rows of the papers (R2GenGPT-like).

Source: Wang et al., "R2GenGPT: Radiology report generation with frozen LLMs", Meta-Radiology 2023.
See docs/methods/baseline.md.
"""

from __future__ import annotations

from radweave.methods.baseline.model import BaselineExperiment, BaselineModelConfig
from radweave.methods.experiment import (
    ENCODER_STAGE,
    R2GENGPT_DECODING,
    SMALL_XRAY,
    TINY_XRAY,
    VisionFirstStages,
    for_scans,
    published,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.stage import full
from radweave.methods.tables import Table, parts_table
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import DenseHeadConfig, LinearWordHeadConfig
from radweave.nn.language_model import SMALL_LLAMA, TINY_LLAMA, PretrainedLanguageModelConfig
from radweave.nn.vision import SwinConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER

R2GENGPT_PROMPT = (
    "Human: <Img>{image}</Img> Generate a comprehensive and detailed diagnosis report for this chest xray image. "
    "\nAssistant:"
)

WORD_PARTS = full("vision_encoder", "word_head")
READING_PARTS = full("connector", "language_model")
REPORT_PARTS = full("vision_encoder") | READING_PARTS
# An encoder from nothing first learns which words go with an image; see radweave/nn/heads.py.
WORDS, REPORT = {"words": 1.0}, {"report": 1.0}


def tiny() -> BaselineExperiment:
    """A million and a half weights from nothing; minutes on one CPU core."""
    model = BaselineModelConfig(
        vision_encoder=PHANTOM_ENCODER,
        connector=LinearConnectorConfig(input_norm="batch"),
        language_model=TINY_LLAMA,
        word_head=DenseHeadConfig(),
        prompt="{image}",
    )
    stages = VisionFirstStages(encoder=ENCODER_STAGE, report=report_stage(READING_PARTS, REPORT))
    return BaselineExperiment(data=TINY_XRAY, model=model, stages=stages, decoding=DecodingConfig(max_new_tokens=96))


def tiny_ct() -> BaselineExperiment:
    """``tiny`` for scans of 32 x 64 x 64 voxels."""
    return for_scans(tiny())


def small() -> BaselineExperiment:
    """About a hundred million weights from nothing; one consumer GPU."""
    encoder = SwinConfig(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24))
    changes = {"vision_encoder": encoder, "language_model": SMALL_LLAMA, "word_head": LinearWordHeadConfig()}
    return BaselineExperiment(
        data=SMALL_XRAY,
        model=tiny().model.model_copy(update=changes),
        stages=VisionFirstStages(
            vision=stage(WORD_PARTS, WORDS, warm(1e-3, 50), epochs=10),
            report=stating_findings(stage(REPORT_PARTS, REPORT, warm(3e-4, 500), epochs=15, batch_size=32)),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> BaselineExperiment:
    """R2GenGPT "deep" at its published numbers: Swin-B trains, Llama-2-7B-chat is frozen. Weights are the user's."""
    swin, llama = "microsoft/swin-base-patch4-window7-224", "meta-llama/Llama-2-7b-chat-hf"
    trained = full("vision_encoder", "connector")
    return BaselineExperiment(
        data=published(max_tokens=100),
        model=BaselineModelConfig(
            vision_encoder=SwinConfig(path=swin, channels=3),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="float16"),
            prompt=R2GENGPT_PROMPT,
            views="average",
        ),
        stages=VisionFirstStages(report=stage(trained, REPORT, warm(1e-4, 0, final_ratio=0.01), epochs=5)),
        decoding=R2GENGPT_DECODING,
    )


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper}

WITH_INDICATION = "told the indication"
WITHOUT_PHANTOMS = "w/o phantom start"
"""An ablation of the tiny presets alone, and so a row of no table."""
ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "pretrained and frozen language model": [
        "stages.language.epochs=10",
        "stages.report.finetune.language_model=frozen",
    ],
    "w/o pretraining": ["stages.encoder.epochs=0"],
    WITHOUT_PHANTOMS: ["model.vision_encoder.start=nothing"],
    "encoder trained on": ["stages.report.finetune.vision_encoder=full"],
    "views averaged": ["model.views=average"],
    "MLP connector": ["model.connector=mlp"],
    WITH_INDICATION: ["data.input_sections=[indication]"],
}

TABLES: dict[str, Table] = {
    "parts": parts_table("Baseline", (name for name in ABLATIONS if name not in (WITHOUT_PHANTOMS, WITH_INDICATION))),
    "told": parts_table("Baseline", [WITH_INDICATION], adds="the indication adds"),
}
