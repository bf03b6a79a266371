"""A published model of images and texts (MedGemma, Qwen-VL, LLaVA, ...), as it is, with adapters, or trained whole.

See docs/methods/generator.md.
"""

from __future__ import annotations

from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig
from radweave.methods.experiment import (
    ENCODER_STAGE,
    SMALL_XRAY,
    TINY_XRAY,
    DataConfig,
    as_written,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.generator.model import (
    GeneratorExperiment,
    GeneratorModelConfig,
    GeneratorStages,
    LanguageConfig,
    ScratchConfig,
)
from radweave.methods.generator.published import MEDGEMMA
from radweave.methods.stage import StageConfig, full
from radweave.methods.tables import Table, parts_table
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import DenseHeadConfig
from radweave.nn.language_model import LoraConfig

REPORT = {"report": 1.0}
WHOLE = full("vision_encoder", "connector", "language_model")
AS_IT_IS = StageConfig(finetune={}, losses={}, epochs=0, augment=False, select="last")
"""Nothing trains: the checkpoint writes as it is."""


def tiny() -> GeneratorExperiment:
    """A small model from nothing, in LLaVA's layout; minutes on one CPU core."""
    return GeneratorExperiment(
        data=TINY_XRAY,
        model=GeneratorModelConfig(word_head=DenseHeadConfig()),
        stages=GeneratorStages(encoder=ENCODER_STAGE, report=report_stage(full("connector", "language_model"), REPORT)),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def small() -> GeneratorExperiment:
    """About thirty million weights from nothing; one consumer GPU."""
    sizes = ScratchConfig(vision_width=384, vision_layers=6, vision_heads=6, width=512, layers=6, heads=8)
    report = stage(WHOLE, REPORT, warm(3e-4, 500), epochs=15, batch_size=32)
    return GeneratorExperiment(
        data=SMALL_XRAY,
        model=GeneratorModelConfig(scratch=sizes),
        stages=GeneratorStages(report=stating_findings(report)),
        decoding=DecodingConfig(max_new_tokens=128),
    )


def zero_shot() -> GeneratorExperiment:
    """A checkpoint as it is: nothing trains."""
    return GeneratorExperiment(
        data=_read_by_a_checkpoint(),
        model=GeneratorModelConfig(path=MEDGEMMA, dtype="bfloat16"),
        stages=GeneratorStages(report=AS_IT_IS),
        decoding=DecodingConfig(max_new_tokens=256),
    )


def served() -> GeneratorExperiment:
    """A model at an endpoint: nothing is here but the tokenizer, whose ids stand for the words of its answers."""
    plain = zero_shot()
    return plain.model_copy(
        update={
            "data": plain.data.model_copy(update={"tokenizer": BpeTokenizerConfig(), "keep_features": False}),
            "model": GeneratorModelConfig(),
            "stages": GeneratorStages(encoder=AS_IT_IS, report=AS_IT_IS),
        }
    )


def lora() -> GeneratorExperiment:
    """Adapters on the language model of a checkpoint; one GPU."""
    plain = zero_shot()
    changes = {"language_model": LanguageConfig(lora=LoraConfig()), "gradient_checkpointing": True}
    return plain.model_copy(
        update={
            "model": plain.model.model_copy(update=changes),
            "stages": GeneratorStages(
                report=stage({"language_model": "lora"}, REPORT, warm(1e-4, 50), epochs=3, batch_size=8, augment=False)
            ),
        }
    )


def whole() -> GeneratorExperiment:
    """All weights of a checkpoint train; several GPUs."""
    plain = zero_shot()
    rate = warm(1e-5, 50)
    return plain.model_copy(
        update={
            "model": plain.model.model_copy(update={"gradient_checkpointing": True, "dtype": "float32"}),
            "stages": GeneratorStages(report=stage(WHOLE, REPORT, rate, epochs=3, batch_size=8, augment=False)),
        }
    )


def paper() -> GeneratorExperiment:
    """MedGemma-4B with adapters, scored as written; there is no paper of this method."""
    experiment = lora()
    return experiment.model_copy(update={"decoding": as_written(experiment.decoding)})


def _read_by_a_checkpoint() -> DataConfig:
    return DataConfig(image_size=896, max_tokens=256, tokenizer=PretrainedTokenizerConfig(), hidden_views=0.0)


PRESETS = {"tiny": tiny, "small": small, "paper": paper, "zero-shot": zero_shot, "lora": lora, "full": whole}

WITH_INDICATION = "told the indication"
ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "encoder trained on": ["stages.report.finetune.vision_encoder=full"],
    "w/o prior": ["model.prior=none"],
    "prior images alone": ["model.prior=images"],
    "maps of gradients": ["model.maps=gradients"],
    "margins cut off": ["model.margins=crop"],
    WITH_INDICATION: ["data.input_sections=[indication]"],
}

TABLES: dict[str, Table] = {
    "parts": parts_table("Generator", (name for name in ABLATIONS if name != WITH_INDICATION)),
    "told": parts_table("Generator", [WITH_INDICATION], adds="the indication adds"),
}
