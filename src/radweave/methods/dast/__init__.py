"""Disease-aware semantic tokens, fused with the image, and a similar case's report in the prompt of a frozen LLM.

Source: the dual-stage disease-aware framework for chest X-ray report generation. See docs/methods/dast.md.
"""

from __future__ import annotations

from radweave.methods.dast.fusion import DvafConfig
from radweave.methods.dast.model import DastExperiment, DastModelConfig
from radweave.methods.dast.retrieval import DmsrConfig
from radweave.methods.experiment import (
    ENCODER_STAGE,
    SMALL_XRAY,
    TINY_XRAY,
    DiseaseFirstStages,
    as_written,
    for_scans,
    language_stage,
    published,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.stage import full
from radweave.methods.tables import read_tables
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import DenseHeadConfig
from radweave.nn.language_model import SMALL_LLAMA, TINY_LLAMA, PretrainedLanguageModelConfig
from radweave.nn.query_transformer import DiseaseTokensConfig
from radweave.nn.text_encoder import LsaTextEncoderConfig, PretrainedTextEncoderConfig
from radweave.nn.vision import VMambaConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER

# The paper gives no prompt. The instruction is R2GenGPT's, which the paper builds on.
EXEMPLAR_PROMPT = "The report of a similar chest X-ray reads: {exemplar}\n"
PROMPT = "<Img>{image}</Img> Generate a comprehensive and detailed diagnosis report for this chest X-ray image."

READING_SIDE = full("disease_tokens", "alignment")
VISION_SIDE = full("vision_encoder") | READING_SIDE
FUSION_SIDE = full("fusion", "connector")
LANGUAGE = full("language_model")
STAGE_ONE = {"disease": 1.0, "contrastive": 1.0}
IN_CONTEXT, REPORT = {"text_in_context": 1.0}, {"report": 1.0}


def tiny() -> DastExperiment:
    """Under two million weights from nothing; minutes on one CPU core."""
    fast = warm(2e-3, 50)
    return DastExperiment(
        data=TINY_XRAY,
        model=DastModelConfig(
            vision_encoder=PHANTOM_ENCODER,
            word_head=DenseHeadConfig(),
            disease_tokens=DiseaseTokensConfig(num_heads=4),
            text_encoder=LsaTextEncoderConfig(width=64),
            fusion=DvafConfig(num_heads=4, class_tokens=True, norm="studies"),
            retrieval=DmsrConfig(max_tokens=96, standardised=True),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=TINY_LLAMA,
            prompt="{image}",
            exemplar_prompt="{exemplar}\n",
        ),
        stages=DiseaseFirstStages(
            encoder=ENCODER_STAGE,
            disease=stage(VISION_SIDE, STAGE_ONE, warm(5e-4, 50), epochs=8),
            language=stage(LANGUAGE, IN_CONTEXT, fast, epochs=4, augment=False),
            report=report_stage(FUSION_SIDE | LANGUAGE, REPORT),
        ),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def tiny_ct() -> DastExperiment:
    """``tiny`` for scans of 32 x 64 x 64 voxels."""
    return for_scans(tiny())


def small() -> DastExperiment:
    """About a hundred million weights from nothing; one consumer GPU."""
    schedule = warm(3e-4, 500)
    return DastExperiment(
        data=SMALL_XRAY,
        model=DastModelConfig(
            vision_encoder=VMambaConfig(dims=(96, 192, 384, 768), depths=(2, 2, 8, 2), ssm_ratio=1.0, drop_path=0.2),
            text_encoder=LsaTextEncoderConfig(width=256, num_buckets=16384),
            fusion=DvafConfig(class_tokens=True, norm="studies"),
            retrieval=DmsrConfig(standardised=True),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=SMALL_LLAMA.model_copy(update={"token_dropout": 0.1}),
            prompt="{image}",
            exemplar_prompt="{exemplar}\n",
        ),
        stages=DiseaseFirstStages(
            disease=stage(VISION_SIDE, STAGE_ONE, schedule, epochs=15, batch_size=64),
            language=language_stage(LANGUAGE, schedule),
            report=stating_findings(stage(FUSION_SIDE, REPORT, schedule, epochs=15, batch_size=32, augment=False)),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> DastExperiment:
    """VMamba-B and Phi-4 at the published numbers; what the paper does not give is on the method page."""
    phi, schedule = "microsoft/phi-4", warm(1e-4, 500, final_ratio=0.0)
    return DastExperiment(
        data=published(max_tokens=150),
        model=DastModelConfig(
            vision_encoder=VMambaConfig(path="vssm_base_0229_ckpt_epoch_237.pth", channels=3),
            text_encoder=PretrainedTextEncoderConfig(path="emilyalsentzer/Bio_ClinicalBERT"),
            retrieval=DmsrConfig(max_tokens=150),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=phi, dtype="bfloat16"),
            prompt=PROMPT,
            exemplar_prompt=EXEMPLAR_PROMPT,
            prompt_format="chat",
        ),
        stages=DiseaseFirstStages(
            disease=stage(VISION_SIDE, STAGE_ONE, schedule, epochs=10, batch_size=64),
            report=stage(FUSION_SIDE, REPORT, schedule, epochs=5, augment=False),
        ),
        decoding=as_written(DecodingConfig(num_beams=3, max_new_tokens=150)),
    )


def paper_iu() -> DastExperiment:
    """``paper`` for IU X-Ray, where the paper's target is findings and impression as one text."""
    experiment = paper()
    data = experiment.data.model_copy(update={"target": "findings+impression"})
    return experiment.model_copy(update={"data": data})


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper, "paper-iu": paper_iu}

NO_RETRIEVAL = "model.retrieval=none"
ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "baseline": ["model.fusion=none", NO_RETRIEVAL],
    "DASTs + DVAF": [NO_RETRIEVAL],
    "concatenation": ["model.fusion=concat", NO_RETRIEVAL],
    "mean pooling": ["model.fusion=mean", NO_RETRIEVAL],
    "language model frozen": ["stages.report.finetune.language_model=frozen"],
    "VMamba encoder from nothing": [
        "model.vision_encoder={kind: vmamba, dims: [16, 48, 128], depths: [1, 1, 2], ssm_ratio: 1.0, mlp_ratio: 2.0, "
        "drop_path: 0.0}"
    ],
    "DVAF as printed": ["model.fusion.class_tokens=false", "model.fusion.norm=none"],
    "encoder frozen in stage 1": ["stages.disease.finetune.vision_encoder=frozen"],
    "every input always": ["stages.report.single_input=0"],
    "DMSR alone": ["model.fusion=none"],
    "DMSR by image only": ["model.retrieval.alpha=1.0"],
    "DMSR by disease only": ["model.retrieval.alpha=0.0"],
    "DMSR with raw logits": ["model.retrieval.standardised=false"],
    "DMSR by raw disease only": ["model.retrieval.standardised=false", "model.retrieval.alpha=0.0"],
}

TABLES = read_tables(__name__)
