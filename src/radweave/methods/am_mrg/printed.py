"""What Tables I and II of the AM-MRG paper print for other systems. Table III is an image in the text we have."""

from __future__ import annotations

from radweave.contract.tables import Row, scored

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
