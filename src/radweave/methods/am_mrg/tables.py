"""The tables of the AM-MRG paper, with the numbers it prints, and those of our own.

Tables III, VI and IX are images in the text we have: their rows are here, their numbers are not.
"""

from __future__ import annotations

from radweave.methods.tables import Row, Table, scored

# Tables I and II of the AM-MRG paper, other systems. Table III is an image in the text we have.


IU, MIMIC, CHEXPERT = "IU X-Ray", "MIMIC-CXR", "CheXpert Plus"
LANGUAGE = ("BLEU_1", "BLEU_2", "BLEU_3", "BLEU_4", "ROUGE_L", "METEOR", "CIDEr")
CLINICAL = ("CE_P", "CE_R", "CE_F1")

_TABLE_1: dict[str, dict[str, tuple[float | None, ...]]] = {
    IU: {
        "R2Gen": (0.470, 0.304, 0.219, 0.165, 0.371, 0.187, None),
        "R2GenCMN": (0.475, 0.309, 0.222, 0.170, 0.375, 0.191, None),
        "METransformer": (0.483, 0.322, 0.228, 0.172, 0.380, 0.192, 0.435),
        "DCL": (None, None, None, 0.163, 0.383, 0.193, 0.586),
        "Token-Mixer": (0.483, 0.338, 0.250, 0.190, 0.402, 0.208, 0.482),
        "PromptMRG": (0.401, None, None, 0.098, 0.160, 0.281, None),
        "Med-LMM": (None, None, None, 0.168, 0.381, 0.209, 0.427),
        "SILC": (0.472, 0.321, 0.234, 0.175, 0.379, 0.192, 0.368),
    },
    MIMIC: {
        "R2Gen": (0.353, 0.218, 0.145, 0.103, 0.277, 0.142, None),
        "R2GenCMN": (0.353, 0.218, 0.148, 0.106, 0.278, 0.142, None),
        "METransformer": (0.386, 0.250, 0.169, 0.124, 0.291, 0.152, 0.362),
        "DCL": (None, None, None, 0.109, 0.284, 0.150, 0.281),
        "Token-Mixer": (0.409, 0.257, 0.175, 0.124, 0.288, 0.158, 0.163),
        "PromptMRG": (0.398, None, None, 0.112, 0.268, 0.157, None),
        "Med-LMM": (None, None, None, 0.128, 0.289, 0.161, 0.265),
        "AdaMatch-Cyclic": (0.379, 0.235, 0.154, 0.106, 0.286, 0.163, None),
    },
    CHEXPERT: {
        "R2Gen": (0.301, 0.179, 0.118, 0.081, 0.246, 0.113, 0.077),
        "R2GenCMN": (0.321, 0.195, 0.128, 0.087, 0.256, 0.127, 0.102),
        "XProNet": (0.364, 0.225, 0.148, 0.100, 0.265, 0.146, 0.121),
        "ORGan": (0.320, 0.196, 0.128, 0.086, 0.261, 0.135, 0.107),
        "ASGMD": (0.267, 0.149, 0.094, 0.063, 0.220, 0.094, 0.044),
        "Token-Mixer": (0.378, 0.231, 0.153, 0.091, 0.262, 0.135, 0.098),
        "PromptMRG": (0.326, 0.174, None, 0.095, 0.222, 0.121, 0.044),
        "R2GenCSR": (0.364, 0.225, 0.148, 0.100, 0.265, 0.146, 0.121),
    },
}
_TABLE_2: dict[str, tuple[float, ...]] = {
    "R2Gen": (0.333, 0.273, 0.276),
    "METransformer": (0.364, 0.309, 0.311),
    "KiUT": (0.371, 0.318, 0.321),
    "CoFE": (0.489, 0.370, 0.405),
    "HERGen": (0.415, 0.301, 0.317),
    "SILC": (0.457, 0.337, 0.330),
    "OaD": (0.364, 0.382, 0.372),
}


def other_systems() -> tuple[Row, ...]:
    """A row for each system that is not run, with all that is printed of it."""
    papers: dict[str, dict[str, dict[str, float]]] = {}
    for source, systems in _TABLE_1.items():
        for name, values in systems.items():
            papers.setdefault(name, {})[source] = scored(LANGUAGE, values)
    for name, clinical in _TABLE_2.items():
        papers.setdefault(name, {}).setdefault(MIMIC, {}).update(scored(CLINICAL, clinical))
    return tuple(Row(name, printed=True, paper=paper) for name, paper in papers.items())


MAPS = ("HiResCAM", "XGradCAM", "EigenCAM", "GradCAM++")
ONE_REGION = "model.visual_memory.regions.regions_per_image=1"
OPEN = (
    "decoder stays frozen",
    "energy rule",
    "attention until it settles",
    "whole reports",
    "w/o orthogonality",
)
FULL_SCORES = (0.136, 0.291, 0.174, 0.261)


def _scores(values: tuple[float, ...]) -> dict[str, float]:
    """BLEU-4, ROUGE-L, METEOR, CIDEr, and precision, recall and F1 where they are printed."""
    names = ("BLEU_4", "ROUGE_L", "METEOR", "CIDEr", "CE_P", "CE_R", "CE_F1")
    return dict(zip(names, values, strict=False))


def _mimic(*values: float) -> dict[str, dict[str, float]]:
    return {MIMIC: _scores(values)}


def _both_sets(mimic: tuple[float, ...], chexpert: tuple[float, ...]) -> dict[str, dict[str, float]]:
    return {MIMIC: _scores(mimic), CHEXPERT: _scores(chexpert)}


def _defaults(label: str) -> Row:
    return Row(label, paper=_mimic(*FULL_SCORES))


def _text_encoder(label: str, checkpoint: str, *values: float) -> Row:
    """A row of Table VIII, with another encoder of the report memory."""
    switch = "model.text_encoder={kind: pretrained, path: PATH}"
    needs = {"model.text_encoder.path": checkpoint}
    return Row(label, overrides=(switch,), needs=needs, paper=_mimic(*values))


def _decoder(label: str, checkpoint: str, *values: float) -> Row:
    """A row of Table X: another language model, frozen, that comes pretrained and brings its words."""
    switches = (
        "model.language_model={kind: pretrained, path: PATH}",
        "data.tokenizer={kind: pretrained}",
        "stages.language.epochs=0",
        "stages.report.finetune.language_model=frozen",
    )
    needs = {"model.language_model.path": checkpoint}
    return Row(label, overrides=switches, needs=needs, paper=_mimic(*values))


TABLES: dict[str, Table] = {
    "main": Table(
        title="Tables I to III: against other systems",
        kind="main",
        reference="Baseline (R2GenGPT)",
        rows=(
            *other_systems(),
            Row(
                "Baseline (R2GenGPT)",
                method="baseline",
                headline=True,
                paper={
                    IU: scored(LANGUAGE, (0.465, 0.299, 0.214, 0.161, 0.376, 0.219, 0.542)),
                    MIMIC: scored(LANGUAGE, (0.408, 0.256, 0.174, 0.125, 0.285, 0.167, 0.244)),
                    CHEXPERT: scored(LANGUAGE, (0.361, 0.224, 0.149, 0.101, 0.266, 0.145, 0.123)),
                },
            ),
            Row(
                "AM-MRG",
                headline=True,
                paper={
                    IU: scored(LANGUAGE, (0.489, 0.339, 0.253, 0.192, 0.384, 0.225, 0.613)),
                    MIMIC: scored(LANGUAGE, (0.426, 0.271, 0.187, 0.136, 0.291, 0.174, 0.261))
                    | scored(CLINICAL, (0.555, 0.429, 0.484)),
                    CHEXPERT: scored(LANGUAGE, (0.381, 0.238, 0.159, 0.109, 0.282, 0.173, 0.221))
                    | scored(CLINICAL, (0.396, 0.318, 0.336)),
                },
            ),
        ),
        metrics=(*LANGUAGE, *CLINICAL),
        note="the paper's IU X-Ray figures are for findings; MIMIC-CXR and CheXpert Plus are not run here; "
        "of Table III we have AM-MRG's figures from the text only",
    ),
    "table4": Table(
        title="Table IV: the two memories",
        reference="#01 neither",
        rows=(
            Row(
                "#01 neither",
                "neither memory",
                headline=True,
                paper=_both_sets(
                    (0.131, 0.286, 0.168, 0.241, 0.539, 0.396, 0.458), (0.101, 0.276, 0.167, 0.173, 0.348, 0.265, 0.284)
                ),
            ),
            Row(
                "#02 V-Hopfield",
                "V-Hopfield only",
                paper={
                    MIMIC: {"BLEU_4": 0.133, "CIDEr": 0.265, "CE_P": 0.545, "CE_R": 0.423, "CE_F1": 0.477},
                    CHEXPERT: _scores((0.106, 0.279, 0.170, 0.206, 0.374, 0.297, 0.317)),
                },
            ),
            Row(
                "#03 R-Hopfield",
                "R-Hopfield only",
                paper=_both_sets(
                    (0.132, 0.286, 0.169, 0.256, 0.486, 0.455, 0.470), (0.105, 0.277, 0.169, 0.209, 0.384, 0.279, 0.304)
                ),
            ),
            Row(
                "#04 both",
                headline=True,
                paper=_both_sets(
                    (*FULL_SCORES, 0.555, 0.429, 0.484), (0.109, 0.282, 0.173, 0.221, 0.396, 0.318, 0.336)
                ),
            ),
        ),
        note="some digits of row #02 are unreadable in our copy and left out",
    ),
    "table5": Table(
        title="Table V: regions per disease",
        reference="500",
        rows=(
            Row("100", "100 regions per disease", paper=_mimic(0.129, 0.282, 0.160, 0.209)),
            Row("250", "250 regions per disease", paper=_mimic(0.130, 0.284, 0.167, 0.239)),
            _defaults("500"),
            Row("750", "750 regions per disease", paper=_mimic(0.131, 0.288, 0.167, 0.246)),
            Row("1000", "1000 regions per disease", paper=_mimic(0.129, 0.283, 0.159, 0.212)),
        ),
        note="a small data set has fewer regions than the larger limits allow; its rows are then the same",
    ),
    "table6": Table(
        title="Table VI: reports in the memory",
        reference="6000",
        rows=(
            *(Row(f"{number}", f"memory of {number} reports") for number in (500, 1000, 3000)),
            _defaults("6000"),
            Row("10000", "memory of 10000 reports"),
        ),
        note="a data set with fewer reports than a row asks for gives them all; the paper's other rows are unreadable",
    ),
    "table7": Table(
        title="Table VII: beta of both Hopfield networks",
        reference="4.0",
        rows=(
            Row("0.5", "beta 0.5", paper=_mimic(0.126, 0.281, 0.161, 0.217)),
            Row("1.0", "beta 1.0", paper=_mimic(0.132, 0.285, 0.166, 0.249)),
            Row("2.0", "beta 2.0", paper=_mimic(0.130, 0.284, 0.161, 0.226)),
            _defaults("4.0"),
            Row("8.0", "beta 8.0", paper=_mimic(0.129, 0.288, 0.170, 0.268)),
            Row("16.0", "beta 16.0", paper=_mimic(0.129, 0.283, 0.162, 0.221)),
        ),
    ),
    "table8": Table(
        title="Table VIII: the encoder of the report memory",
        reference="as configured",
        rows=(
            _text_encoder("Llama-2", "Llama-2-7B", 0.129, 0.285, 0.166, 0.234),
            _text_encoder("Vicuna-v1.5", "Vicuna-7b-v1.5", 0.132, 0.288, 0.164, 0.230),
            _text_encoder("Orca-2", "Orca-2-7b", 0.129, 0.288, 0.171, 0.254),
            _text_encoder("InternLM", "InternLM-7B", 0.129, 0.290, 0.171, 0.267),
            _text_encoder("Bio_ClinicalBERT", "Bio_ClinicalBERT", *FULL_SCORES),
            Row("as configured"),
        ),
        note="the preset 'paper' is configured with Bio_ClinicalBERT; the sizes of the language models are not given",
    ),
    "table9": Table(
        title="Table IX: the activation map",
        reference="GradCAM",
        rows=(*(Row(name, name) for name in MAPS), _defaults("GradCAM")),
        note="banks are equally large where every disease has its cap of regions; on few data see table9-equal",
    ),
    "table9-equal": Table(
        title="Table IX with banks of a size: the strongest region of each image alone",
        kind="ours",
        reference="GradCAM",
        rows=tuple(Row(name, name if name in MAPS else None, overrides=(ONE_REGION,)) for name in (*MAPS, "GradCAM")),
        note="one region for every study and disease it states, up to the cap, but for maps without any positive place",
    ),
    "table10": Table(
        title="Table X: the decoder",
        reference="as configured",
        rows=(
            _decoder("GPT2-Medium", "GPT2-Medium", 0.073, 0.230, 0.076, 0.089),
            _decoder("InternLM-7B", "InternLM-7B", 0.086, 0.226, 0.140, 0.141),
            _decoder("Yi-1.5-9B", "Yi-1.5-9B", 0.106, 0.280, 0.136, 0.149),
            _decoder("Orca-2-7b", "Orca-2-7b", 0.129, 0.289, 0.168, 0.262),
            _decoder("Vicuna-7b-v1.5", "Vicuna-7b-v1.5", 0.130, 0.289, 0.168, 0.250),
            _decoder("Llama2-7B", "Llama-2-7B", *FULL_SCORES),
            Row("as configured"),
        ),
        note="the preset 'paper' is configured with Llama2-7B",
    ),
    "ours": Table(
        title="What the paper leaves open",
        kind="ours",
        reference="full",
        rows=(
            Row("full", headline=True),
            *(Row(name, name) for name in OPEN),
        ),
    ),
}
