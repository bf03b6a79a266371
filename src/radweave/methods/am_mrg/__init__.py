"""Disease tokens that recall regions and reports from associative memories (AM-MRG).

Source: Wang et al., "Activating associative disease-aware vision token memory for LLM-based X-ray report generation"
(AM-MRG). See docs/methods/am_mrg.md.
"""

from __future__ import annotations

from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig
from radweave.data.transforms import LightAugmentation
from radweave.experiment import DataConfig
from radweave.methods.am_mrg.disease_queries import QueryFormerConfig
from radweave.methods.am_mrg.memory import ReportMemoryConfig, VisualMemoryConfig
from radweave.methods.am_mrg.model import AmMrgExperiment, AmMrgModelConfig
from radweave.methods.am_mrg.regions import RegionConfig
from radweave.methods.am_mrg.stages import AmMrgStages, training
from radweave.methods.am_mrg.tables import TABLES
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.language_model import TINY_LLAMA, DecodingConfig, LlamaConfig, PretrainedLanguageModelConfig
from radweave.nn.text_encoder import LsaTextEncoderConfig, PretrainedTextEncoderConfig
from radweave.nn.vision import ResNetConfig, SwinConfig
from radweave.nn.word_head import LinearWordHeadConfig
from radweave.train.stage import OptimizerConfig, StageConfig

__all__ = ["ABLATIONS", "PRESETS", "TABLES"]

# R2GenGPT's words around the slots, as in the paper's code; the instruction itself is the paper's (Sec. III-D).
PAPER_PROMPT = (
    "Human: <Img>{image}{queries}{memory}</Img> Generate a comprehensive and detailed diagnosis report for this chest "
    "X-ray image. \nAssistant:"
)
PLAIN_PROMPT = "{image}{queries}{memory}"

STAGE_ONE = training(vision_encoder="full", query_former="full", heads="full")
STAGE_TWO = training(visual_memory="full", report_memory="full", connector="full", query_projection="full")


def tiny() -> AmMrgExperiment:
    """Under two million weights from nothing; minutes on one CPU core."""
    return AmMrgExperiment(
        data=DataConfig(
            image_size=128,
            max_tokens=96,
            tokenizer=BpeTokenizerConfig(vocab_size=1200),
            augmentation=LightAugmentation(),
        ),
        model=AmMrgModelConfig(
            vision_encoder=ResNetConfig(
                embedding_size=16, hidden_sizes=(16, 32, 128), depths=(1, 1, 2), layer_type="basic"
            ),
            query_former=QueryFormerConfig(dim=128, num_layers=2, num_heads=4, ffn_ratio=2.0),
            word_head=LinearWordHeadConfig(),
            text_encoder=LsaTextEncoderConfig(),
            visual_memory=VisualMemoryConfig(num_heads=2, head_dim=32, regions=RegionConfig(threshold=0.5)),
            report_memory=ReportMemoryConfig(num_heads=2, head_dim=32),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=TINY_LLAMA,
            prompt=PLAIN_PROMPT,
            image_grid=4,
        ),
        stages=AmMrgStages(
            disease=StageConfig(
                finetune=STAGE_ONE | {"word_head": "full"},
                losses={"disease": 1.0, "orthogonality": 0.1, "words": 0.02},
                optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=50),
                epochs=8,
                batch_size=16,
            ),
            language=StageConfig(
                finetune=training(language_model="full"),
                losses={"text_in_context": 1.0},
                optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=50),
                epochs=4,
                batch_size=16,
                augment=False,
            ),
            report=StageConfig(
                finetune=STAGE_TWO | {"language_model": "full"},
                losses={"report": 1.0},
                optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=50),
                epochs=8,
                batch_size=16,
                augment=False,
            ),
        ),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def small() -> AmMrgExperiment:
    """About a hundred million weights from nothing; one consumer GPU."""
    return AmMrgExperiment(
        data=DataConfig(
            image_size=224,
            max_tokens=128,
            tokenizer=BpeTokenizerConfig(vocab_size=8000),
            augmentation=LightAugmentation(),
        ),
        model=AmMrgModelConfig(
            vision_encoder=SwinConfig(embed_dim=96, depths=(2, 2, 6, 2), num_heads=(3, 6, 12, 24)),
            query_former=QueryFormerConfig(dim=384, num_layers=3, num_heads=6),
            word_head=LinearWordHeadConfig(),
            text_encoder=LsaTextEncoderConfig(width=256, num_buckets=16384),
            visual_memory=VisualMemoryConfig(num_heads=4, head_dim=64),
            report_memory=ReportMemoryConfig(num_heads=4, head_dim=64),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=LlamaConfig(hidden_size=640, num_layers=10, num_heads=10, dropout=0.1),
            prompt=PLAIN_PROMPT,
        ),
        stages=AmMrgStages(
            disease=StageConfig(
                finetune=STAGE_ONE | {"word_head": "full"},
                losses={"disease": 1.0, "orthogonality": 0.1, "words": 0.02},
                optimizer=OptimizerConfig(learning_rate=5e-4, warmup_steps=500),
                epochs=15,
                batch_size=32,
            ),
            language=StageConfig(
                finetune=training(language_model="full"),
                losses={"text_in_context": 1.0},
                optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=500),
                epochs=10,
                batch_size=32,
                augment=False,
            ),
            report=StageConfig(
                finetune=STAGE_TWO,
                losses={"report": 1.0},
                optimizer=OptimizerConfig(learning_rate=3e-4, warmup_steps=500),
                epochs=10,
                batch_size=32,
                augment=False,
            ),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> AmMrgExperiment:
    """The paper's numbers; a Swin-B stands for its encoder, whose weights are the user's, as all others are."""
    swin, llama = "microsoft/swin-base-patch4-window7-224", "meta-llama/Llama-2-7b-chat-hf"
    return AmMrgExperiment(
        data=DataConfig(image_size=224, max_tokens=100, tokenizer=PretrainedTokenizerConfig()),
        model=AmMrgModelConfig(
            vision_encoder=SwinConfig(path=swin, channels=3),
            text_encoder=PretrainedTextEncoderConfig(path="emilyalsentzer/Bio_ClinicalBERT"),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="float16"),
            prompt=PAPER_PROMPT,
        ),
        stages=AmMrgStages(
            disease=StageConfig(
                finetune=STAGE_ONE,
                losses={"disease": 1.0, "orthogonality": 0.1},
                optimizer=OptimizerConfig(learning_rate=5e-5, warmup_steps=0),
                epochs=10,
                batch_size=16,
            ),
            report=StageConfig(
                finetune=STAGE_TWO,
                losses={"report": 1.0},
                optimizer=OptimizerConfig(learning_rate=1e-4, warmup_steps=0, final_ratio=0.01),
                epochs=6,
                batch_size=16,
                augment=False,
            ),
        ),
        decoding=DecodingConfig(
            num_beams=3, min_new_tokens=80, max_new_tokens=120, repetition_penalty=2.0, length_penalty=2.0
        ),
    )


PRESETS = {"tiny": tiny, "small": small, "paper": paper}


MEMORIES = ("visual_memory", "report_memory")
SIZED = "model.visual_memory.regions.regions_per_disease", "model.report_memory.reports.num_reports"


def _both(setting: str) -> list[str]:
    return [f"model.{memory}.{setting}" for memory in MEMORIES]


ABLATIONS: dict[str, list[str]] = {
    "full": [],
    # Table IV
    "neither memory": ["model.visual_memory=none", "model.report_memory=none"],
    "V-Hopfield only": ["model.report_memory=none"],
    "R-Hopfield only": ["model.visual_memory=none"],
    # Table V; 500 is the default
    **{f"{number} regions per disease": [f"{SIZED[0]}={number}"] for number in (100, 250, 750, 1000)},
    # Table VI; 6000 is the default
    **{f"memory of {number} reports": [f"{SIZED[1]}={number}"] for number in (500, 1000, 3000, 10000)},
    # Table VII; 4 is the default
    **{f"beta {beta}": _both(f"update.beta={beta}") for beta in (0.5, 1.0, 2.0, 8.0, 16.0)},
    # Table VIII: other encoders are given by folder, model.text_encoder.path
    "text encoder of 16 directions": ["model.text_encoder={kind: lsa, width: 16}"],
    # Table IX; GradCAM is the default
    **{
        name: [f"model.visual_memory.regions.cam={kind}"]
        for name, kind in (
            ("GradCAM++", "gradcam++"),
            ("HiResCAM", "hirescam"),
            ("XGradCAM", "xgradcam"),
            ("EigenCAM", "eigencam"),
        )
    },
    # Table X: other decoders are given by folder, model.language_model.path
    "decoder of one layer": ["model.language_model.num_layers=1"],
    # Ours
    "decoder stays frozen": ["stages.report.finetune.language_model=frozen"],
    "energy rule": _both("update=energy"),
    "attention until it settles": [*_both("update.steps=20"), *_both("update.tolerance=0.001")],
    "whole reports": ["model.report_memory.reports.unit=report"],
    "w/o orthogonality": ["stages.disease.losses.orthogonality=0.0"],
}
