"""Encoder, connector, language model: the Baseline rows of the papers (R2GenGPT-like).

Source: Wang et al., "R2GenGPT: Radiology report generation with frozen LLMs", Meta-Radiology 2023.
See docs/methods/baseline.md.
"""

from __future__ import annotations

from radweave.ablation_tables import Row, Table
from radweave.data.ct import CtPreprocessing
from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig
from radweave.data.transforms import LightAugmentation
from radweave.experiment import DataConfig
from radweave.methods.baseline.model import BaselineExperiment, BaselineModelConfig, BaselineStages
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.language_model import TINY_LLAMA, DecodingConfig, LlamaConfig, PretrainedLanguageModelConfig
from radweave.nn.vision import SwinConfig
from radweave.nn.vision.pretrained import TINY_RESNET
from radweave.nn.vision.resnet3d import TINY_RESNET3D
from radweave.nn.word_head import LinearWordHeadConfig
from radweave.train.stage import OptimizerConfig, StageConfig, Trainability

R2GENGPT_PROMPT = (
    "Human: <Img>{image}</Img> Generate a comprehensive and detailed diagnosis report for this chest xray image. "
    "\nAssistant:"
)

ALL_BUT_WORD_HEAD: dict[str, Trainability] = {
    "vision_encoder": "full",
    "connector": "full",
    "language_model": "full",
    "word_head": "frozen",
}
# An encoder from nothing first learns which words go with an image; see radweave/nn/word_head.py.
WORDS_FROM_IMAGES = StageConfig(
    finetune={"vision_encoder": "full", "connector": "frozen", "language_model": "frozen", "word_head": "full"},
    losses={"words": 1.0},
    optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=50),
    epochs=10,
    batch_size=16,
)


def tiny() -> BaselineExperiment:
    """A million and a half weights from nothing; minutes on one CPU core."""
    return BaselineExperiment(
        data=DataConfig(
            image_size=128,
            max_tokens=96,
            tokenizer=BpeTokenizerConfig(vocab_size=1200),
            augmentation=LightAugmentation(),
        ),
        model=BaselineModelConfig(
            vision_encoder=TINY_RESNET,
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=TINY_LLAMA,
            word_head=LinearWordHeadConfig(),
            prompt="{image}",
        ),
        stages=BaselineStages(
            vision=WORDS_FROM_IMAGES.model_copy(update={"epochs": 8}),
            report=StageConfig(
                finetune=ALL_BUT_WORD_HEAD,
                losses={"report": 1.0},
                optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=100),
                epochs=8,
                batch_size=16,
            ),
        ),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def tiny_ct() -> BaselineExperiment:
    """``tiny`` with a 3D encoder, for scans, of which there are fewer; their reports are longer."""
    plain = tiny()
    stages = plain.stages
    data = plain.data.model_copy(
        update={
            "ct": CtPreprocessing(size=(32, 64, 64), fit="resize", window_hu=(-1000, 200)),
            "label_set": "ct18",
            "max_tokens": 160,
            "augmentation": LightAugmentation(contrast=0.04),
        }
    )
    return plain.model_copy(
        update={
            "data": data,
            "model": plain.model.model_copy(update={"vision_encoder": TINY_RESNET3D}),
            "stages": stages.model_copy(
                update={
                    "vision": stages.vision.model_copy(update={"epochs": 18}),
                    "report": stages.report.model_copy(update={"epochs": 8}),
                }
            ),
            "decoding": plain.decoding.model_copy(update={"max_new_tokens": 160}),
        }
    )


def small() -> BaselineExperiment:
    """About a hundred million weights from nothing; one consumer GPU."""
    return BaselineExperiment(
        data=DataConfig(
            image_size=224,
            max_tokens=128,
            tokenizer=BpeTokenizerConfig(vocab_size=8000),
            augmentation=LightAugmentation(),
        ),
        model=BaselineModelConfig(
            vision_encoder=SwinConfig(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=LlamaConfig(hidden_size=640, num_layers=10, num_heads=10, dropout=0.1),
            word_head=LinearWordHeadConfig(),
            prompt="{image}",
        ),
        stages=BaselineStages(
            vision=WORDS_FROM_IMAGES,
            report=StageConfig(
                finetune=ALL_BUT_WORD_HEAD,
                losses={"report": 1.0},
                optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=500),
                epochs=15,
                batch_size=32,
            ),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> BaselineExperiment:
    """R2GenGPT "deep" at its published numbers: Swin-B trains, Llama-2-7B-chat is frozen. Weights are the user's."""
    swin, llama = "microsoft/swin-base-patch4-window7-224", "meta-llama/Llama-2-7b-chat-hf"
    return BaselineExperiment(
        data=DataConfig(image_size=224, max_tokens=100, tokenizer=PretrainedTokenizerConfig()),
        model=BaselineModelConfig(
            vision_encoder=SwinConfig(path=swin, channels=3),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="float16"),
            prompt=R2GENGPT_PROMPT,
            views="average",
        ),
        stages=BaselineStages(
            report=StageConfig(
                finetune=ALL_BUT_WORD_HEAD | {"language_model": "frozen"},
                losses={"report": 1.0},
                optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=0, final_ratio=0.01),
                epochs=5,
                batch_size=16,
            )
        ),
        decoding=DecodingConfig(
            num_beams=3, min_new_tokens=80, max_new_tokens=120, repetition_penalty=2.0, length_penalty=2.0
        ),
    )


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper}

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "pretrained and frozen language model": [
        "stages.language.epochs=10",
        "stages.report.finetune.language_model=frozen",
    ],
    "w/o words from images": ["stages.vision.epochs=0"],
    "frozen encoder": ["stages.report.finetune.vision_encoder=frozen"],
    "views averaged": ["model.views=average"],
    "MLP connector": ["model.connector=mlp"],
}

TABLES: dict[str, Table] = {
    "parts": Table(
        title="Baseline: what its parts add",
        reference="full",
        rows=(
            Row("full", headline=True),
            Row("w/o words from images", "w/o words from images"),
            Row("frozen encoder", "frozen encoder"),
            Row("views averaged", "views averaged"),
            Row("MLP connector", "MLP connector"),
        ),
        note="a table of our own: no paper prints these rows",
    ),
}
