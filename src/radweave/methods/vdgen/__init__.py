"""VDGen: visual tokens spread by self-equilibration, taught by the report, and a decoder with LoRA.

Source: "VDGen", anonymous ACL submission. See docs/methods/vdgen.md.
"""

from __future__ import annotations

from radweave.methods.experiment import (
    ALL_LINEAR,
    ENCODER_STAGE,
    SMALL_XRAY,
    TINY_XRAY,
    VisionFirstStages,
    as_written,
    for_scans,
    language_stage,
    published,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.stage import StageConfig, full
from radweave.methods.tables import read_tables
from radweave.methods.vdgen.model import VdgenExperiment, VdgenModelConfig
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import DenseHeadConfig, LinearWordHeadConfig
from radweave.nn.language_model import SMALL_LLAMA, TINY_LLAMA, LoraConfig, PretrainedLanguageModelConfig
from radweave.nn.vision import SwinConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER

VDGEN_PROMPT = (
    "Human: <img> {image} </img> Generate a comprehensive and detailed diagnosis report for this chest X-ray image."
    "\nAssistant:"
)

EQUAL_WEIGHTS = {"report": 1.0, "vse": 1.0, "did": 1.0}
"""Eq. 8."""
BALANCED_WEIGHTS = EQUAL_WEIGHTS | {"did": 0.2}
"""Eq. 8 with gradients of like size: under equal weights DID's is four to seven times the report's in ``tiny``."""
REPORT_PARTS = full("vision_encoder", "vision_norm", "connector", "vse", "did") | {"language_model": "lora"}


def stages(report: StageConfig, *, vision: int, language: int) -> VisionFirstStages:
    """An encoder and a decoder from nothing need passes of their own before reports are learned.

    The encoder learns which words go with an image; see radweave/nn/heads.py. The decoder learns to write reports
    from some of their words, where the image will stand: trained on reports alone it never looks at what stands before
    them, and adapters do not teach it to; see radweave/nn/text_pretraining.py. It learns without its adapters, so that
    what teaches in DID, the model with them off, is one that was trained as it is.
    """
    sight = full("vision_encoder", "word_head")
    return VisionFirstStages(
        vision=stage(sight, {"words": 1.0}, warm(1e-3, 50), epochs=vision),
        language=stage({"language_model": "base"}, {"text_in_context": 1.0}, warm(1e-3, 100), epochs=language),
        report=report,
    )


def tiny() -> VdgenExperiment:
    """Under two million weights from nothing; minutes on one CPU core."""
    report = report_stage(REPORT_PARTS | {"language_model": "base"}, BALANCED_WEIGHTS)
    return VdgenExperiment(
        data=TINY_XRAY,
        model=VdgenModelConfig(
            vision_encoder=PHANTOM_ENCODER,
            vision_norm="batch",
            connector=LinearConnectorConfig(),
            language_model=TINY_LLAMA.model_copy(update={"lora": LoraConfig(alpha=64, targets=ALL_LINEAR)}),
            word_head=DenseHeadConfig(),
            prompt="{image}",
        ),
        stages=stages(report, vision=0, language=4).model_copy(update={"encoder": ENCODER_STAGE}),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def tiny_ct() -> VdgenExperiment:
    """``tiny`` for scans of 32 x 64 x 64 voxels, where DID's gradient is larger beside the report's."""
    scans = for_scans(tiny())
    report = scans.stages.report.model_copy(update={"losses": BALANCED_WEIGHTS | {"did": 0.07}})
    return scans.model_copy(update={"stages": scans.stages.model_copy(update={"report": report})})


def small() -> VdgenExperiment:
    """About a hundred million weights from nothing; one consumer GPU. Beside adapters DID's gradient is larger."""
    changes = {
        "vision_encoder": SwinConfig(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
        "language_model": SMALL_LLAMA.model_copy(update={"lora": LoraConfig(targets=ALL_LINEAR)}),
        "word_head": LinearWordHeadConfig(),
    }
    report = stating_findings(
        stage(REPORT_PARTS, BALANCED_WEIGHTS | {"did": 0.1}, warm(3e-4, 500), epochs=15, batch_size=32)
    )
    text = language_stage({"language_model": "base"}, warm(1e-3, 100))
    return VdgenExperiment(
        data=SMALL_XRAY.model_copy(update={"max_tokens": 100}),
        model=tiny().model.model_copy(update=changes),
        stages=stages(report, vision=10, language=0).model_copy(update={"language": text}),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=100),
    )


def paper() -> VdgenExperiment:
    """The published numbers: Swin-B trains, Llama-2-7B-chat gets adapters. Weights are the user's."""
    swin, llama = "microsoft/swin-base-patch4-window7-224", "meta-llama/Llama-2-7b-chat-hf"
    adapters = LoraConfig(rank=16, alpha=16)
    report = stage(REPORT_PARTS, EQUAL_WEIGHTS, warm(1e-4, 0, final_ratio=0.01), epochs=5)
    return VdgenExperiment(
        data=published(max_tokens=100),
        model=VdgenModelConfig(
            vision_encoder=SwinConfig(path=swin, channels=3),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="bfloat16", lora=adapters),
            prompt=VDGEN_PROMPT,
        ),
        stages=stages(report, vision=0, language=0),
        decoding=as_written(DecodingConfig(max_new_tokens=100)),
    )


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper}

ADAPTERS_ALONE = [
    "stages.report.finetune.language_model=lora",
    "stages.language.epochs=24",
    "stages.language.patience=3",
]
"""The paper's way: nothing but adapters learns of the decoder, which has learned from text to its plateau before."""

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "w/o VSE": ["model.vse=none"],
    "w/o DID": ["model.did=none"],
    "w/o LoRA": ["stages.report.finetune.language_model=frozen"],
    "adapters alone": ADAPTERS_ALONE,
    "adapters alone w/o VSE": [*ADAPTERS_ALONE, "model.vse=none"],
    "adapters alone w/o DID": [*ADAPTERS_ALONE, "model.did=none"],
    "adapters alone w/o VSE and DID": [*ADAPTERS_ALONE, "model.vse=none", "model.did=none"],
    "equal weights": ["stages.report.losses.did=1.0"],
    "layer normalisation": ["model.vision_norm=layer"],
    "frozen encoder": ["stages.report.finetune.vision_encoder=frozen"],
    "w/o VSE and DID": ["model.vse=none", "model.did=none"],
    "VSE: own similarity in the denominator": ["model.vse.self_in_denominator=true"],
    "VSE: two views": ["model.vse=two_views", "data.keep_features=false"],
}

TABLES = read_tables(__name__)
