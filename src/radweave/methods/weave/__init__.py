"""A stack of heads and smoothers, weighed for each class on out-of-fold studies, and drafts chosen by it.

There is no paper. See docs/methods/weave.md.
"""

from __future__ import annotations

from radweave.methods.experiment import (
    ENCODER_STAGE,
    SMALL_XRAY,
    TINY_XRAY,
    DataConfig,
    as_written,
    for_scans,
    published,
    report_stage,
    stage,
    stating_findings,
    warm,
)
from radweave.methods.stage import StageConfig, full
from radweave.methods.tables import Row, Table, parts_table
from radweave.methods.weave.config import WeaveExperiment, WeaveModelConfig, WeaveStages
from radweave.methods.weave.heads import TokenSourceConfig
from radweave.methods.weave.memory import NoKernelsConfig
from radweave.nn.connector import LinearConnectorConfig
from radweave.nn.decoding import DecodingConfig, ExpectedUtilityConfig
from radweave.nn.language_model import SMALL_LLAMA, TINY_LLAMA, LoraConfig, PretrainedLanguageModelConfig
from radweave.nn.query_transformer import DiseaseTokensConfig
from radweave.nn.text_pretraining import DiagnosisTextConfig
from radweave.nn.vision import ResNetConfig, SwinConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER

__all__ = ["ABLATIONS", "PRESETS", "TABLES"]

HEADS, SOURCES = full("tokens"), {"tokens": 1.0}
WRITING, REPORT = full("connector", "language_model"), {"report": 1.0}
MEMBER_PARTS, WORDS = full("vision_encoder", "dense"), {"dense": 1.0}
PROMPT = (
    "<Img>{image}</Img> {findings} Generate a comprehensive and detailed diagnosis report for this chest X-ray image."
)


def of_members(plain: StageConfig) -> StageConfig:
    """A stage that trains five members at once, of one that trains a single one.

    Gradients are clipped at 2.2 times the norm: five independent ones together are the root of five as long as each.
    """
    optimizer = plain.optimizer.model_copy(update={"max_grad_norm": 2.2 * plain.optimizer.max_grad_norm})
    return plain.model_copy(update={"optimizer": optimizer})


def members_stage(plain: StageConfig) -> StageConfig:
    """The stage that trains the members, of the one that trains an encoder alone."""
    return of_members(plain.model_copy(update={"finetune": MEMBER_PARTS, "losses": WORDS}))


def by_utility(tokens: int, further_findings: int = 0) -> DecodingConfig:
    """Drafts are chosen by expected utility, told the patient's prior study; the language model's own are greedy."""
    chosen = ExpectedUtilityConfig(further_findings=further_findings, prior="both")
    return DecodingConfig(kind="expected_utility", expected_utility=chosen, max_new_tokens=tokens)


def tiny() -> WeaveExperiment:
    """Four members of one million weights each; some twenty minutes on one CPU core."""
    return WeaveExperiment(
        data=TINY_XRAY,
        model=WeaveModelConfig(
            vision_encoder=PHANTOM_ENCODER,
            full_member=True,
            tokens=TokenSourceConfig(tokens=DiseaseTokensConfig(num_heads=4)),
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=TINY_LLAMA,
            prompt="{image}{findings}",
        ),
        stages=WeaveStages(
            encoder=members_stage(ENCODER_STAGE),
            sources=of_members(stage(HEADS, SOURCES, warm(1e-3, 50), epochs=6, augment=False)),
            report=report_stage(WRITING, REPORT),
        ),
        decoding=by_utility(96),
    )


def tiny_ct() -> WeaveExperiment:
    """``tiny`` for scans of 32 x 64 x 64 voxels, of which there are no classical descriptors."""
    return for_scans(tiny(), kernels=NoKernelsConfig())


def small() -> WeaveExperiment:
    """ResNet-50 members and a language model of sixty million weights from nothing; one consumer GPU."""
    encoder = ResNetConfig(depths=(3, 4, 6, 3))
    schedule, plain = warm(3e-4, 500), tiny()
    data: DataConfig = SMALL_XRAY.model_copy(update={"max_views": TINY_XRAY.max_views})
    changes = {"vision_encoder": encoder, "tokens": TokenSourceConfig(), "language_model": SMALL_LLAMA}
    words = stage(MEMBER_PARTS, WORDS, schedule, epochs=15, batch_size=32)
    return WeaveExperiment(
        data=data,
        model=plain.model.model_copy(update=changes),
        stages=WeaveStages(
            encoder=members_stage(words.model_copy(update={"precision": "auto", "ema": 0.99, "select": "last"})),
            sources=of_members(stage(HEADS, SOURCES, schedule, epochs=10, batch_size=32, augment=False)),
            report=stating_findings(stage(WRITING, REPORT, schedule, epochs=15, batch_size=32, augment=False)),
        ),
        decoding=by_utility(128),
    )


def paper() -> WeaveExperiment:
    """Swin-B members, which the papers that weave's parts are from train, and a 7B language model with adapters."""
    swin, llama = "microsoft/swin-base-patch4-window7-224", "meta-llama/Llama-2-7b-chat-hf"
    schedule = warm(1e-4, 500, final_ratio=0.0)
    words = stage(MEMBER_PARTS, WORDS, schedule, epochs=10, batch_size=32, augment=False)
    return WeaveExperiment(
        data=published(max_tokens=100),
        model=WeaveModelConfig(
            vision_encoder=SwinConfig(path=swin, channels=3),
            full_member=True,
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="bfloat16", lora=LoraConfig()),
            findings_text=DiagnosisTextConfig(intro="Findings of a classifier:", none=" none."),
            prompt=PROMPT,
            prompt_format="chat",
        ),
        stages=WeaveStages(
            encoder=members_stage(words.model_copy(update={"select": "last"})),
            sources=of_members(stage(HEADS, SOURCES, schedule, epochs=10, batch_size=64, augment=False)),
            report=stage({**full("connector"), "language_model": "lora"}, REPORT, schedule, epochs=5, augment=False),
        ),
        decoding=as_written(by_utility(100)),
    )


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper}

# Ablations: each source alone, all but each, and without stack, drafting or language model. No paper prints them.

SILENT = {
    "dense": "model.dense.is_source=false",
    "tokens": "model.tokens=none",
    "kernels": "model.kernels=none",
}
"""Override that switches each source off. The dense head trains the members in any case."""

ALONE = {f"{name} alone": [how for other, how in SILENT.items() if other != name] for name in SILENT}
WITHOUT = {f"w/o {name}": [how] for name, how in SILENT.items()}

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    **ALONE,
    **WITHOUT,
    "w/o stack": ["model.stack=equal"],
    "w/o drafting": ["decoding.kind=likelihood"],
    "one threshold": ["decoding.expected_utility.thresholds=pooled"],
    "contradictions left": ["decoding.expected_utility.consistent=false"],
    "w/o language model": ["decoding.expected_utility.written=false"],
    "told no prior": ["decoding.expected_utility.prior=none"],
    "told the prior's report": ["decoding.expected_utility.prior=report"],
    "told the prior's image": ["decoding.expected_utility.prior=image"],
    "two members": ["model.members=2"],
}

AT_DECODING = {
    name: tuple(option.removeprefix("decoding.") for option in options)
    for name, options in ABLATIONS.items()
    if options and all(option.startswith("decoding.") for option in options)
}
"""A run of which the decoding alone differs is trained once."""
ROWS = tuple(
    Row(name, run_of="full", decoding=AT_DECODING[name]) if name in AT_DECODING else Row(name, name)
    for name in ABLATIONS
    if name != "full"
)
PARTS = Table(
    title="weave: what its sources and its parts add",
    rows=(Row("full", headline=True), *ROWS),
    reference="full",
    note=parts_table("weave", ()).note,
    kind="ours",
)

TABLES: dict[str, Table] = {"parts": PARTS}
