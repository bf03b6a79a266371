"""Differential visual prompting: what tells a scan from a normal one stands before it, for a decoder with LoRA.

Source: Tian et al., "DiffVP: Differential visual semantic prompting for LLM-based CT report generation",
arXiv:2603.17718. See docs/methods/diffvp.md.
"""

from __future__ import annotations

from radweave.data.augmentation import LightAugmentation
from radweave.data.ct import CtPreprocessing
from radweave.data.tokenizer import BpeTokenizerConfig, PretrainedTokenizerConfig
from radweave.methods.diffvp.diagnosis import NoisyOrConfig
from radweave.methods.diffvp.difference import DifferenceConfig
from radweave.methods.diffvp.model import ClassHeadConfig, DiffvpExperiment, DiffvpModelConfig, DiffvpStages
from radweave.methods.diffvp.pool import PoolConfig
from radweave.methods.diffvp.resampling import ResamplerConfig
from radweave.methods.experiment import (
    ALL_LINEAR,
    ENCODER_STAGE,
    MANY_FINDINGS,
    TINY_XRAY,
    DataConfig,
    as_written,
    for_scans,
    language_stage,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.stage import StageConfig, Trainability, full
from radweave.methods.tables import read_tables
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig
from radweave.nn.heads import DenseHeadConfig, LinearWordHeadConfig
from radweave.nn.language_model import SMALL_LLAMA, TINY_LLAMA, LoraConfig, PretrainedLanguageModelConfig
from radweave.nn.text_pretraining import DiagnosisTextConfig
from radweave.nn.vision import ResNet3dConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER

PLAIN_PROMPT = "{difference}{image}{diagnosis}"
# The paper names "structured textual prompts T" and prints none; the words are ours.
PAPER_PROMPT = (
    "Human: <Diff>{difference}</Diff> <CT>{image}</CT> {diagnosis} Generate a comprehensive and detailed diagnosis "
    "report for this chest CT scan.\nAssistant:"
)

ENCODER_PARTS = full("vision_encoder", "vision_head", "word_head")
LATENT_PARTS = full("resampler", "auxiliary_head")
REPORT_PARTS = full("resampler", "difference", "auxiliary_head", "connector")
E, LANGUAGE = full("diagnosis"), full("language_model")
BASE: dict[str, Trainability] = {"language_model": "base"}
"""A language model that gets adapters learns to write without them."""
WITH_ADAPTERS = REPORT_PARTS | {"language_model": "lora"}
FINDINGS, DIAGNOSIS = {"disease": 1.0, "words": 0.005}, {"diagnosis": 1.0}
AUXILIARY, IN_CONTEXT = {"auxiliary": 1.0}, {"text_in_context": 1.0}
REPORT_LOSSES = {"report": 1.0, "auxiliary": 1.0}
"""Eq. 11."""
CONTRAST = {"contrast": 1.0}


def tiny_xray() -> DiffvpExperiment:
    """About two million weights from nothing, for radiographs; minutes on one CPU core."""
    slow, fast = warm(1e-3, 50), warm(2e-3, 50)
    return DiffvpExperiment(
        data=TINY_XRAY,
        model=DiffvpModelConfig(
            vision_encoder=PHANTOM_ENCODER,
            vision_head=ClassHeadConfig(pooling="noisy_or"),
            word_head=DenseHeadConfig(),
            diagnosis=NoisyOrConfig(),
            resampler=ResamplerConfig(dim=128, num_layers=2, num_heads=4, ffn_ratio=2.0, sharpness=4.0),
            difference=DifferenceConfig(num_heads=4, ffn_ratio=2.0, norm="studies"),
            auxiliary_head=ClassHeadConfig(pooling="noisy_or"),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=TINY_LLAMA,
            prompt=PLAIN_PROMPT,
        ),
        stages=DiffvpStages(
            encoder=ENCODER_STAGE,
            vision=stage(ENCODER_PARTS, FINDINGS, fast, epochs=0),
            diagnosis=stage(E, DIAGNOSIS, warm(3e-3, 50), epochs=8, augment=False),
            latents=stage(LATENT_PARTS, AUXILIARY | CONTRAST, slow, epochs=6, augment=False),
            language=stage(LANGUAGE, IN_CONTEXT, fast, epochs=4, augment=False),
            report=report_stage(REPORT_PARTS | LANGUAGE, REPORT_LOSSES | CONTRAST),
        ),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def tiny() -> DiffvpExperiment:
    """``tiny-xray`` for scans of 32 x 64 x 64 voxels."""
    return for_scans(tiny_xray())


def small() -> DiffvpExperiment:
    """About a hundred and fifty million weights from nothing, for scans; one consumer GPU."""
    encoder, schedule = ResNet3dConfig(layout="medicalnet"), warm(3e-4, 500)
    return DiffvpExperiment(
        data=DataConfig(
            ct=CtPreprocessing(size=(64, 192, 192), crop="foreground", fit="resize", window_hu=(-1000, 200)),
            label_set="ct18",
            max_tokens=256,
            tokenizer=BpeTokenizerConfig(vocab_size=8000),
            augmentation=LightAugmentation(contrast=0.04),
            keep_features=False,
        ),
        model=DiffvpModelConfig(
            vision_encoder=encoder,
            vision_head=ClassHeadConfig(pooling="noisy_or"),
            word_head=LinearWordHeadConfig(),
            diagnosis=NoisyOrConfig(encoder=encoder),
            pool=PoolConfig(size=124),
            resampler=ResamplerConfig(sharpness=4.0),
            difference=DifferenceConfig(norm="studies"),
            auxiliary_head=ClassHeadConfig(pooling="noisy_or"),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=SMALL_LLAMA.model_copy(update={"lora": LoraConfig(targets=ALL_LINEAR)}),
            prompt=PLAIN_PROMPT,
        ),
        stages=DiffvpStages(
            vision=stage(ENCODER_PARTS, FINDINGS, schedule, epochs=15, batch_size=8),
            diagnosis=stage(E, DIAGNOSIS, schedule, epochs=15, batch_size=8),
            latents=stage(LATENT_PARTS, AUXILIARY | CONTRAST, schedule, epochs=6, batch_size=8, augment=False),
            language=language_stage(BASE, schedule),
            report=stating_findings(
                stage(WITH_ADAPTERS, REPORT_LOSSES | CONTRAST, schedule, epochs=10, batch_size=8, augment=False)
            ),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=256, expected_utility=MANY_FINDINGS),
    )


def paper() -> DiffvpExperiment:
    """The paper's numbers: a frozen 3D ResNet-18, Llama-2-7B with adapters. Weights are the user's."""
    llama, schedule = "meta-llama/Llama-2-7b-hf", warm(5e-5, 0)
    encoder = ResNet3dConfig(layout="medicalnet", shortcut="zeros")
    report = stage(WITH_ADAPTERS, REPORT_LOSSES, schedule, epochs=10, batch_size=4, augment=False)
    return DiffvpExperiment(
        data=DataConfig(
            ct=CtPreprocessing(spacing_mm=(3.0, 1.0, 1.0), crop="body", window_hu=(-1000, 200), size=(112, 320, 384)),
            label_set="ct18",
            max_tokens=512,
            tokenizer=PretrainedTokenizerConfig(),
            keep_features=False,
        ),
        model=DiffvpModelConfig(
            vision_encoder=encoder.model_copy(update={"path": "resnet_18_23dataset.pth"}),
            diagnosis=NoisyOrConfig(encoder=encoder),
            diagnosis_text=DiagnosisTextConfig(intro="Findings of a classifier:", none=" none."),
            difference=DifferenceConfig(norm="none"),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="bfloat16", lora=LoraConfig()),
            prompt=PAPER_PROMPT,
        ),
        stages=DiffvpStages(
            vision=stage(ENCODER_PARTS, {"disease": 1.0}, schedule, epochs=0, batch_size=1),
            diagnosis=stage(E, DIAGNOSIS, schedule, epochs=10, batch_size=4),
            language=StageConfig(finetune={}, losses={"text": 1.0}, epochs=0, batch_size=4),
            report=report.model_copy(update={"precision": "bfloat16"}),
        ),
        decoding=as_written(DecodingConfig(max_new_tokens=512, expected_utility=MANY_FINDINGS)),
    )


PRESETS = {"tiny": tiny, "tiny-xray": tiny_xray, "small": small, "paper": paper}

# Without E there is nothing to train in its stage.
NO_E = ["model.diagnosis=none", "stages.diagnosis.epochs=0"]

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    # Table 4
    "neither delta nor E": ["model.difference=none", *NO_E],
    "E alone": ["model.difference=none"],
    "global delta and E": ["model.difference.kind=global"],
    "local delta and E": ["model.difference.kind=local"],
    # Table 6
    "global delta": ["model.difference.kind=global", *NO_E],
    "both deltas": NO_E,
    # Table 3; 16 is the default
    **{f"prefix of {number}": [f"model.difference.prompt_tokens={number}"] for number in (4, 8, 24, 32)},
    # Figure 5b; the images are needed, which features of the frozen encoder do not hold
    "pixel difference": ["model.difference.kind=pixel", "data.keep_features=false"],
    # Ours: other pools while training too, where the paper's Tables 7 to 10 exchange references at test time alone
    **{f"pool of {number}": [f"model.pool.size={number}"] for number in (1, 10, 40, 60)},
    **{f"{share} % abnormal": [f"model.pool.contamination={share / 100}"] for share in (10, 50)},
    # The other data set is given as model.pool.other=FOLDER
    **{f"{share} % of another domain": [f"model.pool.domain_mix={share / 100}"] for share in (10, 50, 100)},
    # Ours
    "no segments": ["model.difference.segments=false"],
    "no norm over studies": ["model.difference.norm=layer"],
    "mean of latents": ["model.auxiliary_head.pooling=mean"],
    "no contrast": ["stages.latents.losses.contrast=0.0", "stages.report.losses.contrast=0.0"],
    "every input always": ["stages.report.single_input=0"],
    "as printed": [
        "model.resampler.sharpness=1.0",
        "model.difference.norm=none",
        "model.auxiliary_head.pooling=mean",
        "stages.latents.losses.contrast=0.0",
        "stages.report.losses.contrast=0.0",
        "stages.report.single_input=0",
    ],
    "own prior as reference": ["data.priors=true", "model.pool.use_prior=true"],
    "decoder with adapters": [
        f"model.language_model.lora={{kind: lora, targets: [{', '.join(ALL_LINEAR)}]}}",
        "stages.language.finetune.language_model=base",
        "stages.report.finetune.language_model=lora",
    ],
}

TABLES = read_tables(__name__)
