"""Difference-aware reports: similar training cases, what differs from them, and attention whose span is routed.

Source: Bian et al., "DiffRGenNet: Difference-aware medical report generation", MIDL 2025. See
docs/methods/diffrgennet.md.
"""

from __future__ import annotations

from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig
from radweave.data.transforms import LightAugmentation
from radweave.experiment import DataConfig
from radweave.methods.diffrgennet.aggregation import FlexiRouteConfig
from radweave.methods.diffrgennet.diseases import DiseaseStatesConfig
from radweave.methods.diffrgennet.model import (
    DiffRGenNetExperiment,
    DiffRGenNetModelConfig,
    DiffRGenNetStages,
    training,
)
from radweave.methods.diffrgennet.tables import ABLATIONS, TABLES
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.encoder_decoder import BertDecoderConfig, PretrainedBertDecoderConfig
from radweave.nn.text_encoder import LsaTextEncoderConfig, PretrainedTextEncoderConfig
from radweave.nn.vision import ResNetConfig
from radweave.nn.vision.pretrained import TINY_RESNET
from radweave.nn.word_head import LinearWordHeadConfig
from radweave.train.stage import OptimizerConfig, StageConfig, Trainability

__all__ = ["ABLATIONS", "PRESETS", "TABLES"]

ALL_BUT_FROZEN: dict[str, Trainability] = training(
    vision_encoder="full",
    connector="full",
    cases="full",
    difference="full",
    aggregation="full",
    diseases="full",
    matching="full",
    bridge="full",
    language_model="full",
)
LOSSES = {"report": 1.0, "disease": 4.0, "matching": 0.1}
WORDS_FROM_IMAGES = StageConfig(
    finetune=training(vision_encoder="full", word_head="full"),
    losses={"words": 1.0},
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=50),
    epochs=10,
    batch_size=16,
)


def tiny() -> DiffRGenNetExperiment:
    """Three and a half million weights from nothing; minutes on one CPU core."""
    return DiffRGenNetExperiment(
        data=DataConfig(
            image_size=128,
            max_tokens=96,
            tokenizer=BpeTokenizerConfig(vocab_size=1200),
            augmentation=LightAugmentation(),
        ),
        model=DiffRGenNetModelConfig(
            vision_encoder=TINY_RESNET,
            connector=LinearConnectorConfig(input_norm="batch"),
            text_encoder=LsaTextEncoderConfig(width=64),
            diseases=DiseaseStatesConfig(taught=0.5),
            language_model=BertDecoderConfig(
                hidden_size=128, num_layers=2, num_heads=4, intermediate_size=256, dropout=0.0, token_dropout=0.2
            ),
            word_head=LinearWordHeadConfig(),
            positions="sine",
        ),
        stages=DiffRGenNetStages(
            vision=WORDS_FROM_IMAGES.model_copy(update={"epochs": 8}),
            report=StageConfig(
                finetune=ALL_BUT_FROZEN,
                losses=LOSSES,
                optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=100),
                epochs=8,
                batch_size=16,
            ),
        ),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def small() -> DiffRGenNetExperiment:
    """About eighty million weights from nothing; one consumer GPU."""
    return DiffRGenNetExperiment(
        data=DataConfig(
            image_size=224,
            max_tokens=128,
            tokenizer=BpeTokenizerConfig(vocab_size=8000),
            augmentation=LightAugmentation(),
        ),
        model=DiffRGenNetModelConfig(
            vision_encoder=ResNetConfig(depths=(3, 4, 6, 3)),
            connector=LinearConnectorConfig(input_norm="batch"),
            text_encoder=LsaTextEncoderConfig(width=256, num_buckets=16384),
            aggregation=FlexiRouteConfig(num_heads=8),
            diseases=DiseaseStatesConfig(taught=0.5),
            language_model=BertDecoderConfig(hidden_size=512, num_layers=6, num_heads=8),
            word_head=LinearWordHeadConfig(),
            positions="sine",
        ),
        stages=DiffRGenNetStages(
            vision=WORDS_FROM_IMAGES,
            report=StageConfig(
                finetune=ALL_BUT_FROZEN,
                losses=LOSSES,
                optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=500),
                epochs=15,
                batch_size=32,
            ),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> DiffRGenNetExperiment:
    """ResNet-101 and BERT-base at the published numbers; what the paper does not give is on the method page."""
    bert = "bert-base-uncased"
    return DiffRGenNetExperiment(
        data=DataConfig(image_size=224, max_tokens=150, tokenizer=PretrainedTokenizerConfig()),
        model=DiffRGenNetModelConfig(
            vision_encoder=ResNetConfig(path="microsoft/resnet-101", channels=3),
            connector=LinearConnectorConfig(),
            text_encoder=PretrainedTextEncoderConfig(path="emilyalsentzer/Bio_ClinicalBERT"),
            aggregation=FlexiRouteConfig(num_heads=8),
            language_model=PretrainedBertDecoderConfig(path=bert),
        ),
        stages=DiffRGenNetStages(
            report=StageConfig(
                finetune=ALL_BUT_FROZEN,
                losses=LOSSES,
                optimizer=OptimizerConfig(learning_rate=5e-5, weight_decay=0.05, warmup_steps=2000, final_ratio=0.1),
                epochs=10,
                batch_size=16,
            )
        ),
        decoding=DecodingConfig(num_beams=3, min_new_tokens=100, max_new_tokens=150),
    )


PRESETS = {"tiny": tiny, "small": small, "paper": paper}
