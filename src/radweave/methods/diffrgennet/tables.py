"""The rows of the paper's ablation tables, and what it printed for them."""

from __future__ import annotations

from radweave.methods.tables import NO_PAPER, Row, Table

WITHOUT_DIFFERENCE = "w/o Feature Difference"
TRANSFORMER = "w/o FAM w Transformer"
WITHOUT_MATCHING = "w/o SCL"

ABLATIONS: dict[str, list[str]] = {
    "full": [],
    WITHOUT_DIFFERENCE: ["model.difference=none"],
    TRANSFORMER: ["model.aggregation=transformer"],
    WITHOUT_MATCHING: ["model.matching=none"],
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
    "SCL without positives in the denominator": ["model.matching.denominator=negatives"],
}


def _mimic(*values: float | None) -> dict[str, dict[str, float]]:
    names = ("BLEU_1", "BLEU_4", "METEOR", "ROUGE_L", "CE_F1_example")
    return {"MIMIC-CXR": {name: value for name, value in zip(names, values, strict=True) if value is not None}}


_FULL = _mimic(0.402, 0.119, 0.163, 0.275, 0.483)
_COLUMNS = ("BLEU_1", "BLEU_4", "METEOR", "ROUGE_L", "CIDEr", "CE_F1_example", "CE_F1", "CE_F1_macro")

IU = "IU X-Ray"
Printed = tuple[float | None, float | None, float | None, float | None, float | None, float | None, float | None]
_NAMES = ("CE_P_example", "CE_R_example", "CE_F1_example", "BLEU_1", "BLEU_4", "METEOR", "ROUGE_L")
# Table 1: precision, recall and F1 are means over studies, as PromptMRG computes them.
_MIMIC_ROWS: dict[str, Printed] = {
    "R2Gen": (0.333, 0.273, 0.276, 0.353, 0.103, 0.142, 0.277),
    "M2TR": (0.240, 0.428, 0.308, 0.378, 0.107, 0.145, 0.272),
    "MKSG": (0.458, 0.348, 0.371, 0.363, 0.115, None, 0.284),
    "CLiBert": (0.397, 0.435, 0.415, 0.383, 0.106, 0.144, 0.275),
    "M2KT": (0.420, 0.339, 0.352, 0.386, 0.111, None, 0.274),
    "METrans.": (0.364, 0.309, 0.311, 0.386, 0.124, 0.152, 0.291),
    "KIUT": (0.371, 0.318, 0.321, 0.393, 0.113, 0.160, 0.285),
    "DCL": (0.471, 0.352, 0.373, None, 0.109, 0.150, 0.284),
    "RGRG": (0.461, 0.475, 0.447, 0.373, 0.126, 0.168, 0.264),
    "MAN": (0.411, 0.398, 0.389, 0.396, 0.115, 0.151, 0.274),
    "HSA": (0.480, 0.357, 0.379, 0.386, 0.120, 0.163, 0.288),
    "PromptMRG": (0.501, 0.509, 0.476, 0.398, 0.112, 0.157, 0.268),
}
_IU_ROWS: dict[str, Printed] = {
    "R2Gen": (0.141, 0.136, 0.136, 0.325, 0.059, 0.131, 0.253),
    "CVT2Dis.": (0.174, 0.172, 0.168, 0.383, 0.082, 0.147, 0.277),
    "M2KT": (0.153, 0.145, 0.145, 0.371, 0.078, 0.153, 0.261),
    "DCL": (0.168, 0.167, 0.162, 0.354, 0.074, 0.152, 0.267),
    "RGRG": (0.183, 0.187, 0.180, 0.266, 0.063, 0.146, 0.180),
    "PromptMRG": (0.213, 0.229, 0.211, 0.401, 0.098, 0.160, 0.281),
}


def _printed(row: Printed) -> dict[str, float]:
    return {name: value for name, value in zip(_NAMES, row, strict=True) if value is not None}


def _systems() -> tuple[Row, ...]:
    """The other systems of Table 1, with what it prints for each of the two data sets."""
    both = (("MIMIC-CXR", _MIMIC_ROWS), (IU, _IU_ROWS))
    names = dict.fromkeys((*_MIMIC_ROWS, *_IU_ROWS))
    return tuple(
        Row(name, printed=True, paper={source: _printed(rows[name]) for source, rows in both if name in rows})
        for name in names
    )


TABLES: dict[str, Table] = {
    "main": Table(
        title="Table 1: against other systems, and on IU X-Ray without training on it",
        reference="DiffRGenNet",
        kind="main",
        rows=(
            *_systems(),
            Row("baseline", method="baseline", headline=True),
            Row(
                "DiffRGenNet",
                headline=True,
                paper={"MIMIC-CXR": _printed((0.512, 0.513, 0.483, 0.402, 0.119, 0.163, 0.275))},
            ),
            Row(
                "DiffRGenNet, zero-shot",
                run_of="DiffRGenNet",
                needs={"dataset": "another data set; the paper's is IU X-Ray, imported with --split test"},
                paper={IU: _printed((0.216, 0.230, 0.213, 0.417, 0.104, 0.167, 0.309))},
            ),
        ),
        metrics=("CE_P_example", "CE_R_example", *_COLUMNS),
        note=(
            "clinical figures are means over studies, as PromptMRG computes them; the paper has no baseline row; its"
            " figures for IU X-Ray are of all of it, by the model trained on MIMIC-CXR"
        ),
    ),
    "table2": Table(
        title="Table 2: what each module adds",
        reference="DiffRGenNet",
        rows=(
            Row("DiffRGenNet", headline=True, paper=_FULL),
            Row(WITHOUT_DIFFERENCE, WITHOUT_DIFFERENCE, paper=_mimic(0.401, 0.115, 0.160, 0.269, 0.481)),
            Row(TRANSFORMER, TRANSFORMER, paper=_mimic(0.400, 0.112, 0.159, 0.268, 0.477)),
            Row(WITHOUT_MATCHING, WITHOUT_MATCHING, paper=_mimic(0.386, 0.107, 0.148, 0.277, 0.382)),
            Row("baseline", method="baseline", headline=True),
        ),
        metrics=_COLUMNS,
        note="the paper has no baseline row; clinical F1 is the mean over studies, as PromptMRG computes it",
    ),
    "table3": Table(
        title="Table 3: how cases and image are brought together",
        reference="Ours (FAM)",
        rows=(
            Row("Transformer", TRANSFORMER, paper=_mimic(0.399, 0.113, 0.160, 0.269, 0.476)),
            Row("TRAR", "TRAR", paper=_mimic(0.400, 0.116, 0.161, 0.272, 0.478)),
            Row("Concat", "concat", paper=_mimic(0.313, 0.101, 0.140, 0.265, 0.267)),
            Row("Ours (FAM)", headline=True, paper=_FULL),
        ),
        metrics=_COLUMNS,
        note="the paper prints its Transformer row twice with different numbers (Tables 2 and 3)",
    ),
    "table4": Table(
        title="Table 4: the distances of Feature Difference",
        reference="all three",
        rows=(
            Row("all three", headline=True, paper=_mimic(None, 0.119, 0.163, 0.275, 0.483)),
            Row("w/o L2 and dot product", "cosine alone", paper=_mimic(None, 0.115, 0.160, 0.270, 0.481)),
            Row("w/o dot product and cosine", "L2 alone", paper=_mimic(None, 0.118, 0.162, 0.271, 0.483)),
            Row("w/o L2 and cosine", "dot product alone", paper=_mimic(None, 0.116, 0.160, 0.273, 0.480)),
        ),
        metrics=_COLUMNS,
    ),
    "figure4": Table(
        title="Figure 4: number of layers",
        reference="2 layers",
        rows=(
            Row("1 layer", "1 layer", paper=_mimic(None, None, None, None, 0.46)),
            Row("2 layers", headline=True, paper=_mimic(None, None, None, None, 0.48)),
            Row("3 layers", "3 layers"),
            Row("4 layers", "4 layers"),
            Row("5 layers", "5 layers"),
        ),
        metrics=_COLUMNS,
        note="the paper's text gives 0.46 for one layer, 0.48 for two, and a fall to 0.43 from three on",
    ),
    "rare": Table(
        title="Logit adjustment and retrieval",
        reference="DiffRGenNet",
        kind="ours",
        rows=(
            Row("DiffRGenNet", headline=True),
            *(Row(name, name) for name in ("w/o logit adjustment", "class prior by frequency", "w/o retrieval")),
        ),
        metrics=_COLUMNS,
        note=NO_PAPER,
    ),
    "readings": Table(
        title="Other readings of the paper, and priors",
        reference="DiffRGenNet",
        kind="ours",
        rows=(
            Row("DiffRGenNet", headline=True),
            *(
                Row(name, name)
                for name in (
                    "masks multiply",
                    "spread window centres",
                    "SCL without positives in the denominator",
                    "with priors",
                )
            ),
        ),
        metrics=_COLUMNS,
        note="a table of our own: the literal Eq. 5, Eq. 6 over the image, the literal Eq. 8, priors",
    ),
}
