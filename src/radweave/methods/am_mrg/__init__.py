"""Disease tokens that recall regions and reports from associative memories (AM-MRG).

Source: Wang et al., "Activating associative disease-aware vision token memory for LLM-based X-ray report generation"
(AM-MRG). See docs/methods/am_mrg.md.
"""

from __future__ import annotations

from radweave.methods.am_mrg.disease_queries import QueryFormerConfig
from radweave.methods.am_mrg.memory import NoVisualMemoryConfig, ReportMemoryConfig, VisualMemoryConfig
from radweave.methods.am_mrg.model import AmMrgExperiment, AmMrgModelConfig
from radweave.methods.am_mrg.regions import RegionConfig
from radweave.methods.experiment import (
    ENCODER_STAGE,
    R2GENGPT_DECODING,
    SMALL_XRAY,
    TINY_XRAY,
    DiseaseFirstStages,
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
from radweave.nn.heads import DenseHeadConfig, LinearWordHeadConfig
from radweave.nn.language_model import SMALL_LLAMA, TINY_LLAMA, PretrainedLanguageModelConfig
from radweave.nn.text_encoder import LsaTextEncoderConfig, PretrainedTextEncoderConfig
from radweave.nn.vision import SwinConfig, ViTConfig
from radweave.nn.vision.pretrained import PHANTOM_ENCODER
from radweave.nn.vision.vim import MAMBAXRAY_LARGE

# R2GenGPT's words around the slots, as in the paper's code; the instruction itself is the paper's (Sec. III-D).
PAPER_PROMPT = (
    "Human: <Img>{image}{queries}{memory}</Img> Generate a comprehensive and detailed diagnosis report for this chest "
    "X-ray image. \nAssistant:"
)
PLAIN_PROMPT = "{image}{queries}{memory}"

READING_PARTS = full("query_former", "heads")
STAGE_ONE = full("vision_encoder") | READING_PARTS
STAGE_TWO = full("visual_memory", "report_memory", "connector", "query_projection")
WORD_HEAD, LANGUAGE = full("word_head"), full("language_model")
DISEASE = {"disease": 1.0, "orthogonality": 0.1}
IN_CONTEXT, REPORT = {"text_in_context": 1.0}, {"report": 1.0}


def tiny() -> AmMrgExperiment:
    """Under two million weights from nothing; minutes on one CPU core."""
    fast = warm(2e-3, 50)
    return AmMrgExperiment(
        data=TINY_XRAY,
        model=AmMrgModelConfig(
            vision_encoder=PHANTOM_ENCODER,
            query_former=QueryFormerConfig(dim=128, num_layers=2, num_heads=4, ffn_ratio=2.0),
            word_head=DenseHeadConfig(),
            text_encoder=LsaTextEncoderConfig(),
            visual_memory=VisualMemoryConfig(
                num_heads=2, head_dim=32, regions=RegionConfig(threshold=0.5), norm="studies"
            ),
            report_memory=ReportMemoryConfig(num_heads=2, head_dim=32, norm="studies"),
            query_norm="studies",
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=TINY_LLAMA,
            prompt=PLAIN_PROMPT,
        ),
        stages=DiseaseFirstStages(
            encoder=ENCODER_STAGE,
            disease=stage(READING_PARTS, DISEASE, warm(1e-3, 50), epochs=8, augment=False),
            language=stage(LANGUAGE, IN_CONTEXT, fast, epochs=4, augment=False),
            report=report_stage(STAGE_TWO | LANGUAGE, REPORT),
        ),
        decoding=DecodingConfig(max_new_tokens=96),
    )


def tiny_ct() -> AmMrgExperiment:
    """``tiny`` for scans of 32 x 64 x 64 voxels. Regions are mined on 2D maps: there is no V-Hopfield."""
    scans = for_scans(tiny(), visual_memory=NoVisualMemoryConfig())
    second = {name: how for name, how in STAGE_TWO.items() if name != "visual_memory"}
    return scans.model_copy(
        update={"stages": scans.stages.model_copy(update={"report": report_stage(second | LANGUAGE, REPORT)})}
    )


def small() -> AmMrgExperiment:
    """About a hundred million weights from nothing; one consumer GPU."""
    disease, rest = warm(5e-4, 500), warm(3e-4, 500)
    return AmMrgExperiment(
        data=SMALL_XRAY,
        model=AmMrgModelConfig(
            vision_encoder=ViTConfig(hidden_size=384, num_layers=12, num_heads=6),
            query_former=QueryFormerConfig(dim=384, num_layers=3, num_heads=6, dropout=0.0),
            word_head=LinearWordHeadConfig(),
            text_encoder=LsaTextEncoderConfig(width=256, num_buckets=16384),
            visual_memory=VisualMemoryConfig(num_heads=4, head_dim=64, norm="studies"),
            report_memory=ReportMemoryConfig(num_heads=4, head_dim=64, norm="studies"),
            query_norm="studies",
            connector=LinearConnectorConfig(input_norm="batch"),
            language_model=SMALL_LLAMA,
            prompt=PLAIN_PROMPT,
        ),
        stages=DiseaseFirstStages(
            disease=stage(STAGE_ONE | WORD_HEAD, DISEASE | {"words": 0.02}, disease, epochs=15, batch_size=32),
            language=language_stage(LANGUAGE, rest),
            report=stating_findings(stage(STAGE_TWO, REPORT, rest, epochs=10, batch_size=32, augment=False)),
        ),
        decoding=DecodingConfig(num_beams=3, max_new_tokens=128),
    )


def paper() -> AmMrgExperiment:
    """The paper's numbers, with MambaXray-VL's large encoder (Sec. IV-B); all weights are the user's."""
    llama = "meta-llama/Llama-2-7b-chat-hf"
    return AmMrgExperiment(
        data=published(max_tokens=100),
        model=AmMrgModelConfig(
            vision_encoder=MAMBAXRAY_LARGE.model_copy(update={"path": "MambaXrayCLIP-L.pth"}),
            text_encoder=PretrainedTextEncoderConfig(path="emilyalsentzer/Bio_ClinicalBERT"),
            connector=LinearConnectorConfig(),
            language_model=PretrainedLanguageModelConfig(path=llama, dtype="float16"),
            prompt=PAPER_PROMPT,
        ),
        stages=DiseaseFirstStages(
            disease=stage(STAGE_ONE, DISEASE, warm(5e-5, 0), epochs=10),
            report=stage(STAGE_TWO, REPORT, warm(1e-4, 0, final_ratio=0.01), epochs=6, augment=False),
        ),
        decoding=R2GENGPT_DECODING,
    )


def paper_swin() -> AmMrgExperiment:
    """The preset ``paper`` with Swin-B, the encoder that the paper names for stage 1 (Sec. III-B), in both stages."""
    swin = SwinConfig(path="microsoft/swin-base-patch4-window7-224", channels=3)
    base = paper()
    return base.model_copy(update={"model": base.model.model_copy(update={"vision_encoder": swin})})


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper, "paper-swin": paper_swin}


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
    # Tables VIII and X have weights of their own: see TABLES
    # Ours
    "decoder stays frozen": ["stages.report.finetune.language_model=frozen"],
    "energy rule": _both("update=energy"),
    "attention until it settles": [*_both("update.steps=20"), *_both("update.tolerance=0.001")],
    "whole reports": ["model.report_memory.reports.unit=report"],
    "no norm over studies": ["model.query_norm=none", *_both("norm=none")],
    "every input always": ["stages.report.single_input=0"],
    "orthogonal queries": ["model.query_former.orthogonal=queries"],
    "w/o orthogonality": ["stages.disease.losses.orthogonality=0.0"],
}

TABLES = read_tables(__name__)
