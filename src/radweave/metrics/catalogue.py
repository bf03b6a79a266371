"""The metrics by key: titles, definitions, direction, and the statistic that each is read from.

Ablation tables, significance tests, the benchmark, the demo and the choice of a checkpoint iterate over ``METRICS``. A
new metric is one record here; a language score also needs its statistic in ``radweave.metrics.language``.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from radweave.metrics.records import ClassGroup, ClinicalAverage, ClinicalKey, Measure
from radweave.metrics.statistics import Statistic
from radweave.metrics.weights import WeightsName

Implementation = Literal[
    "coco",
    "hf",
    "words",
    "labels",
    "boxes",
    "radgraph",
    "chexbert",
    "bertscore",
    "radcliq",
    "ratescore",
    "green",
    "crimson",
    "radfact",
    "srr",
]
SuiteName = Literal["papers", "rexrank", "vlm3d", "all"]
CRG = "CRG"
_DF_SOURCE = "references of the evaluated set"
_RADCLIQ_WEIGHTS: tuple[WeightsName, ...] = ("radgraph", "chexbert", "bertscore")
_RADCLIQ_RULES = (
    ("", "", "without IDF, as CXR-Report-Metric and ReXrank"),
    ("_idf", " with IDF", "with IDF over the evaluated references, as RadEval"),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One score of a set of reports.

    Attributes:
        key: name in files, options and papers' tables.
        title: name in plots.
        definition: the program or paper that it follows.
        hf_definition: the same under protocols of HF evaluate, where it is another.
        computed_by: the implementations of a protocol that compute it, or the one of ``further`` that does.
        label: name of its row in the language table; the key without one.
        column: name of its column in the benchmark's clinical table.
        scale: the largest value.
        higher_is_better: direction.
        clinical: average, measure and class group of a clinical score; None for a language score.
        in_tables: a column of ablation tables.
        in_benchmark: a column of the benchmark's tables.
        is_main: tested by the benchmark; the language scores among them also warn of floors and are logged in training.
        is_short: shown where few scores are: beside floors, in the demo.
        need: what a reader looks for who chooses a method by it.
        weights: names of the local weights that it needs.
        is_reciprocal: the corpus value is 1 / mean, of a score that is better when lower.
    """

    key: str
    title: str = ""
    definition: str = ""
    hf_definition: str = ""
    computed_by: tuple[Implementation, ...] = ("coco", "hf")
    label: str = ""
    column: str = ""
    scale: int = 1
    higher_is_better: bool = True
    clinical: tuple[ClinicalAverage, Measure, ClassGroup] | None = None
    in_tables: bool = False
    in_benchmark: bool = False
    is_main: bool = False
    is_short: bool = False
    need: str = ""
    weights: tuple[WeightsName, ...] = ()
    is_reciprocal: bool = False

    @property
    def name(self) -> str:
        """Name in tables."""
        return self.title or self.column or self.key

    @property
    def axis(self) -> str:
        """Title with the range of values."""
        return f"{self.title} (0 to {self.scale})"

    def rank(self, value: float) -> float:
        """A number that is larger for a better score: of 1 / mean less the mean, which may lie on both sides of 0."""
        if self.is_reciprocal:
            return -1.0 / value if value else -math.inf
        return value if self.higher_is_better else -value

    def statistic(
        self, language: Mapping[str, Statistic], clinical: Mapping[ClinicalKey, Statistic]
    ) -> Statistic | None:
        """The statistic of an evaluation that the score is computed from; None where it was not computed.

        In a clinical score uncertain counts as negative, and No Finding is left out where the labels have it.
        """
        if self.clinical is None:
            return language.get(self.key)
        key = self.clinical_key(clinical)
        return None if key is None else clinical[key]

    def clinical_key(self, computed: Container[ClinicalKey]) -> ClinicalKey | None:
        """The computed clinical score that this metric is; None for a language score, and where it was not computed."""
        if self.clinical is None:
            return None
        average, measure, group = self.clinical
        key = ClinicalKey("negative", group, average, measure)
        if group == "without_no_finding" and key not in computed:
            key = key._replace(group="all")
        return key if key in computed else None


def _bleu(order: int, *, is_main: bool = False, is_short: bool = False) -> Metric:
    return Metric(
        f"BLEU_{order}",
        f"BLEU-{order}",
        f"BLEU-{order} of coco's scorer; corpus value from summed counts",
        f"BLEU-{order} of HF evaluate with smoothing, 13a tokens, mean over studies",
        in_tables=True,
        in_benchmark=True,
        is_main=is_main,
        is_short=is_short,
    )


def _clinical(
    key: str,
    average: ClinicalAverage,
    measure: Measure,
    group: ClassGroup = "without_no_finding",
    *,
    title: str = "",
    column: str = "",
    is_main: bool = False,
    need: str = "",
    in_tables: bool = True,
) -> Metric:
    return Metric(
        key,
        title,
        clinical=(average, measure, group),
        column=column,
        in_tables=in_tables,
        in_benchmark=bool(column),
        is_main=is_main,
        need=need,
    )


METRICS: Mapping[str, Metric] = {
    metric.key: metric
    for metric in (
        _bleu(1, is_short=True),
        _bleu(2),
        _bleu(3),
        _bleu(4, is_main=True, is_short=True),
        Metric(
            "METEOR",
            "METEOR",
            "METEOR 1.5 (Java, -l en -norm), corpus value from summed statistics",
            in_tables=True,
            in_benchmark=True,
        ),
        Metric("METEOR_segment_mean", definition="METEOR 1.5 (Java, -l en -norm), mean over studies"),
        *(
            Metric(
                f"ROUGE_{n}",
                f"ROUGE-{n}",
                f"ROUGE-{n} F1 of rouge-score without stemming, mean over studies",
                in_tables=True,
            )
            for n in (1, 2)
        ),
        Metric(
            "ROUGE_L",
            "ROUGE-L",
            "ROUGE-L of coco's scorer (beta 1.2), mean over studies",
            "ROUGE-L F1 of rouge-score without stemming, mean over studies",
            in_tables=True,
            in_benchmark=True,
            is_main=True,
            is_short=True,
            need="long common phrases (ROUGE-L)",
        ),
        Metric(
            "ROUGE_L_F1",
            definition="ROUGE-L F1 of rouge-score without stemming, mean over studies",
            computed_by=("coco",),
            label="ROUGE_L_F1 (rouge-score)",
        ),
        Metric(
            "CIDEr",
            "CIDEr",
            f"CIDEr-D, which coco's scorer and the papers call CIDEr; document frequencies: {_DF_SOURCE}",
            label="CIDEr (= CIDEr-D, as coco)",
            scale=10,
            in_tables=True,
            in_benchmark=True,
            is_main=True,
            is_short=True,
            need="wording near the references (CIDEr)",
        ),
        Metric(
            "CIDEr_plain",
            definition=f"CIDEr without clipping and length penalty; document frequencies: {_DF_SOURCE}",
            scale=10,
        ),
        *(
            Metric(
                f"RadGraph_{level}",
                definition=f"RadGraph-F1, reward level {level}, mean over studies; 0 where either graph is empty",
                computed_by=("radgraph",),
                weights=("radgraph",),
            )
            for level in ("simple", "partial", "complete")
        ),
        Metric(
            "RadGraph_combined",
            "RadGraph",
            "mean of entity F1 and relation F1, exact matches of (words, label) and (entity, entity, relation), mean"
            " over studies, as ReXrank and RadCliQ; 0 for relations where neither report has one",
            computed_by=("radgraph",),
            weights=("radgraph",),
        ),
        Metric(
            "BLEU_2_sentence",
            "BLEU-2 by study",
            "BLEU-2 of each study on lower-case words, no match of an order counts as 0.1, mean over studies, as"
            " ReXrank (fast-bleu)",
            computed_by=("words",),
        ),
        Metric(
            "temporal_F1",
            "temporal F1",
            "F1 of the words of change that a report has, mean over studies, as Libra and RadEval; 1 where neither"
            " report has one",
            computed_by=("words",),
        ),
        Metric(
            CRG,
            "CRG",
            "clinically relevant gain of VLM3D over all classes and studies: U / (2U - s), U = (X - A) / 2,"
            " r = (X - A) / (2A), s = r TP - r FN - FP, of X labels with A positive ones",
            computed_by=("labels",),
        ),
        *(
            Metric(key, title, f"{rule}, boxes of one label", computed_by=("boxes",))
            for key, title, rule in (
                ("box_IoU", "box IoU", "largest IoU with a drafted box, mean over the reference's boxes, then studies"),
                ("box_pointing", "pointing", "share of the reference's boxes that hold the middle of a drafted one"),
                ("box_F1_30", "box F1 at .3", "F1 of boxes that match at an IoU of .3, pooled over studies"),
                ("box_F1_50", "box F1 at .5", "F1 of boxes that match at an IoU of .5, pooled over studies"),
            )
        ),
        Metric(
            "SembScore",
            "SembScore",
            "cosine of CheXbert's [CLS] states, mean over studies",
            computed_by=("chexbert",),
            weights=("chexbert",),
        ),
        *(
            Metric(
                f"BERTScore{key}",
                f"BERTScore{title}",
                f"F of BERTScore {rule}, mean over studies",
                computed_by=("bertscore",),
                weights=("bertscore",),
            )
            for key, title, rule in (
                ("", "", "rescaled with the baseline, without IDF, as ReXrank"),
                ("_idf", " with IDF", "rescaled with the baseline, with IDF over the evaluated references"),
                ("_raw", ", not rescaled", "as it is, without IDF"),
            )
        ),
        *(
            Metric(
                f"RadCliQ_{version}{key}",
                f"RadCliQ-{version}{title}",
                f"RadCliQ-{version}, BERTScore {rule}, mean over studies; lower is better",
                computed_by=("radcliq",),
                higher_is_better=False,
                weights=(*_RADCLIQ_WEIGHTS, *(("radcliq",) if version == "v0" else ())),
            )
            for version in ("v0", "v1")
            for key, title, rule in _RADCLIQ_RULES
        ),
        *(
            Metric(
                f"RadCliQ_v1{key}_inverse",
                f"1/RadCliQ-v1{title}",
                f"1 / mean of RadCliQ-v1 over studies, BERTScore {rule}",
                computed_by=("radcliq",),
                weights=_RADCLIQ_WEIGHTS,
                is_reciprocal=True,
            )
            for key, title, rule in _RADCLIQ_RULES
        ),
        Metric(
            "RaTEScore",
            "RaTEScore",
            "agreement of entities by kind and similarity of names, weights 'long', mean over studies, as RaTEScore"
            " 0.6.0; 0.5 where a report has none",
            computed_by=("ratescore",),
            weights=("rate-ner", "biolord"),
        ),
        Metric(
            "GREEN",
            "GREEN",
            "matched findings / (matched findings + clinically significant errors) as a language model counts them,"
            " mean over studies",
            computed_by=("green",),
            weights=("green",),
        ),
        Metric(
            "CRIMSON",
            "CRIMSON",
            "findings matched less findings invented, weighted by significance, as a language model counts them, mean"
            " over studies; from -1 to 1",
            computed_by=("crimson",),
            weights=("crimson",),
        ),
        *(
            Metric(
                f"RadFact{kind}_{letter}",
                f"RadFact {title}{measure}",
                f"share of the sentences of the {whose} {rule}, as a language model tells, mean over studies",
                computed_by=("radfact",),
            )
            for kind, title, rule in (
                ("", "", "that the other report supports"),
                ("_grounding", "grounding ", "supported with boxes whose boxes lie in those of their evidence"),
                ("_spatial", "spatial ", "with boxes that are supported and lie in the boxes of their evidence"),
            )
            for letter, measure, whose in (("P", "precision", "draft"), ("R", "recall", "reference"))
        ),
        Metric(
            "SRR_F1",
            "SRR-BERT F1",
            "F1 of SRR-BERT's classes, weighted by support, as RadEval; a report has the classes of its sentences",
            computed_by=("srr",),
            weights=("srr",),
        ),
        *(
            Metric(
                f"BLEU_{n}_corpus",
                definition=f"BLEU-{n} of HF evaluate with smoothing, 13a tokens, corpus",
                computed_by=("hf",),
            )
            for n in range(1, 5)
        ),
        _clinical("CE_P", "micro", "precision", title="findings precision", column="precision"),
        _clinical("CE_R", "micro", "recall", title="findings recall", column="recall"),
        _clinical(
            "CE_F1",
            "micro",
            "f1",
            title="findings F1, micro",
            column="micro F1",
            is_main=True,
            need="findings named right (micro F1)",
        ),
        _clinical(
            "CE_F1_macro",
            "macro",
            "f1",
            title="findings F1, macro",
            column="macro F1",
            is_main=True,
            need="rare findings too (macro F1)",
        ),
        _clinical("CE_P_macro", "macro", "precision", title="precision, macro", in_tables=False),
        _clinical("CE_R_macro", "macro", "recall", title="recall, macro", in_tables=False),
        # Over the findings with five positives or more in the references.
        _clinical("CE_F1_macro_5", "macro", "f1", "frequent", column="macro F1 (5+)"),
        _clinical("CE_P_example", "example", "precision"),
        _clinical("CE_R_example", "example", "recall"),
        _clinical("CE_F1_example", "example", "f1", column="F1 by study"),
    )
}
"""All metrics in the order of tables."""

TABLE_METRICS = tuple(metric.key for metric in METRICS.values() if metric.in_tables)
"""Keys that ablation tables and papers' numbers may have."""
MAIN_METRICS = tuple(metric.key for metric in METRICS.values() if metric.is_main)
MAIN_LANGUAGE_METRICS = tuple(key for key in MAIN_METRICS if METRICS[key].clinical is None)
SHORT_METRICS = tuple(metric.key for metric in METRICS.values() if metric.is_short)

_LANGUAGE = ("BLEU_1", "BLEU_2", "BLEU_3", "BLEU_4", "METEOR", "ROUGE_L", "CIDEr")
SUITES: Mapping[SuiteName, tuple[str, ...]] = {
    "papers": (*_LANGUAGE, "CE_P", "CE_R", "CE_F1", "CE_F1_macro"),
    "rexrank": (
        "BLEU_2_sentence",
        "BERTScore",
        "SembScore",
        "RadGraph_combined",
        "RadCliQ_v1_inverse",
        "RaTEScore",
        "GREEN",
    ),
    "vlm3d": (*_LANGUAGE, "CE_P_macro", "CE_R_macro", "CE_F1_macro", CRG),
    "all": tuple(METRICS),
}
"""The scores that a table of papers or a leaderboard shows, by name.

``papers``: the five papers' tables. ``rexrank``: Zhang et al., "ReXrank", arXiv:2411.15122. ``vlm3d``: the VLM3D
challenge's task of report generation.
"""
assert tuple(SUITES) == get_args(SuiteName)


FURTHER_METRICS = tuple(
    metric.key
    for metric in METRICS.values()
    if metric.clinical is None and not {"coco", "hf"} & set(metric.computed_by)
)
"""Scores of the texts as they are given, under no protocol; computed where they are asked for (``further``)."""


def definitions(implementation: Implementation) -> dict[str, str]:
    """Definition of each language metric that an implementation computes."""
    return {
        metric.key: (implementation == "hf" and metric.hf_definition) or metric.definition
        for metric in METRICS.values()
        if metric.clinical is None and implementation in metric.computed_by
    }
