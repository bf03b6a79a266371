"""Difference-aware reports: similar training cases, what differs from them, and attention whose span is routed.

Source: Bian et al., "DiffRGenNet: Difference-aware medical report generation", MIDL 2025. See
docs/methods/diffrgennet.md.
"""

from __future__ import annotations

from radweave.methods.diffrgennet.aggregation import FlexiRouteConfig
from radweave.methods.diffrgennet.difference import CaseEmbeddingConfig, FeatureDifferenceConfig
from radweave.methods.diffrgennet.diseases import DiseaseStatesConfig
from radweave.methods.diffrgennet.matching import NegPosMatchingConfig
from radweave.methods.diffrgennet.model import DiffRGenNetExperiment, DiffRGenNetModelConfig, DiffRGenNetStages
from radweave.methods.experiment import (
    ENCODER_STAGE,
    SMALL_XRAY,
    TINY_XRAY,
    as_written,
    published,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.stage import OptimizerConfig, StageConfig, full
from radweave.methods.tables import read_tables
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.encoder_decoder import BertDecoderConfig, PretrainedBertDecoderConfig
from radweave.nn.heads import DenseHeadConfig, LinearWordHeadConfig
from radweave.nn.text_encoder import LsaTextEncoderConfig, PretrainedTextEncoderConfig
from radweave.nn.vision import ResNetConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER

READING_PARTS = full("connector", "cases", "difference", "aggregation", "diseases", "matching")
READING_PARTS |= full("bridge", "language_model")
REPORT_PARTS = full("vision_encoder") | READING_PARTS
LOSSES = {"report": 1.0, "disease": 4.0, "matching": 0.1}


PRINTED = [
    "model.difference.space=shared",
    "model.difference.norm=none",
    "model.difference.vector=false",
    "model.cases.ranks=false",
    "model.matching.over=inputs",
    "stages.report.withheld={}",
    "stages.report.single_input=0",
]
"""Printed forms of the options that the presets set otherwise so that the difference is heard; see the method page."""


def heard(report: StageConfig) -> StageConfig:
    """The stage with the image withheld now and then, so that what was made of it has to be read."""
    return report.model_copy(update={"withheld": {"image": 0.3}})


def tiny() -> DiffRGenNetExperiment:
    """Three and a half million weights from nothing; minutes on one CPU core."""
    decoder = BertDecoderConfig(hidden_size=128, num_layers=2, num_heads=4, intermediate_size=256, dropout=0.0)
    return DiffRGenNetExperiment(
        data=TINY_XRAY,
        model=DiffRGenNetModelConfig(
            vision_encoder=PHANTOM_ENCODER,
            connector=LinearConnectorConfig(input_norm="batch"),
            text_encoder=LsaTextEncoderConfig(width=64),
            cases=CaseEmbeddingConfig(ranks=True),
            difference=FeatureDifferenceConfig(space="matching", norm="batch", vector=True),
            diseases=DiseaseStatesConfig(taught=0.5),
            matching=NegPosMatchingConfig(over="outputs"),
            language_model=decoder.model_copy(update={"token_dropout": 0.2}),
            word_head=DenseHeadConfig(),
            positions="sine",
        ),
        stages=DiffRGenNetStages(encoder=ENCODER_STAGE, report=heard(report_stage(READING_PARTS, LOSSES))),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def small() -> DiffRGenNetExperiment:
    """About eighty million weights from nothing; one consumer GPU."""
    changes = {
        "vision_encoder": ResNetConfig(depths=(3, 4, 6, 3)),
        "text_encoder": LsaTextEncoderConfig(width=256, num_buckets=16384),
        "aggregation": FlexiRouteConfig(num_heads=8),
        "word_head": LinearWordHeadConfig(),
        "language_model": BertDecoderConfig(hidden_size=512, num_layers=6, num_heads=8),
    }
    report = stating_findings(stage(REPORT_PARTS, LOSSES, warm(3e-4, 500), epochs=15, batch_size=32))
    # An encoder from nothing first learns which words go with an image; see radweave/nn/heads.py.
    vision = stage(full("vision_encoder", "word_head"), {"words": 1.0}, warm(1e-3, 50), epochs=10)
    return DiffRGenNetExperiment(
        data=SMALL_XRAY,
        model=tiny().model.model_copy(update=changes),
        stages=DiffRGenNetStages(vision=vision, report=heard(report)),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> DiffRGenNetExperiment:
    """ResNet-101 and BERT-base at the published numbers; what the paper does not give is on the method page."""
    bert = "bert-base-uncased"
    schedule = OptimizerConfig(learning_rate=5e-5, weight_decay=0.05, warmup_steps=2000, final_ratio=0.1)
    return DiffRGenNetExperiment(
        data=published(max_tokens=150),
        model=DiffRGenNetModelConfig(
            vision_encoder=ResNetConfig(path="microsoft/resnet-101", channels=3),
            connector=LinearConnectorConfig(),
            text_encoder=PretrainedTextEncoderConfig(path="emilyalsentzer/Bio_ClinicalBERT"),
            difference=FeatureDifferenceConfig(space="matching"),
            aggregation=FlexiRouteConfig(num_heads=8),
            matching=NegPosMatchingConfig(over="outputs"),
            language_model=PretrainedBertDecoderConfig(path=bert),
        ),
        stages=DiffRGenNetStages(report=stage(REPORT_PARTS, LOSSES, schedule, epochs=10)),
        decoding=as_written(DecodingConfig(num_beams=3, min_new_tokens=100, max_new_tokens=150)),
    )


PRESETS = {"tiny": tiny, "small": small, "paper": paper}

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "w/o Feature Difference": ["model.difference=none"],
    "w/o FAM w Transformer": ["model.aggregation=transformer"],
    "w/o SCL": ["model.matching=none"],
    "TRAR": ["model.aggregation=trar"],
    "concat": ["model.aggregation=concat"],
    "cosine alone": ["model.difference.metrics=[cosine]"],
    "L2 alone": ["model.difference.metrics=[l2]"],
    "dot product alone": ["model.difference.metrics=[dot]"],
    "1 layer": ["model.aggregation.num_layers=1"],
    **{f"{layers} layers": [f"model.aggregation.num_layers={layers}"] for layers in (3, 4, 5)},
    "w/o logit adjustment": ["model.diseases.adjustment=none"],
    "class prior by frequency": ["model.diseases.adjustment=frequency"],
    "w/o retrieval": ["model.retrieval=none"],
    "with priors": ["data.priors=true"],
    "masks multiply": ["model.aggregation.mask=multiply"],
    "spread window centres": ["model.aggregation.centers=spread"],
    "Eq. 1 and Eq. 8 as printed": PRINTED,
    "distances of the shared space": ["model.difference.space=shared"],
    "SCL without difference features": ["model.matching.over=inputs"],
    "w/o difference vector": ["model.difference.vector=false"],
    "SCL without positives in the denominator": ["model.matching.denominator=negatives"],
}

TABLES = read_tables(__name__)
