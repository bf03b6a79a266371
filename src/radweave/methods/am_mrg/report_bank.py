"""The report memory: sentences, or whole reports, of training studies drawn in proportion to the classes.

Source: Wang et al., AM-MRG, Sec. III-C ("each report is tokenized into sentences"), IV-B (6,000 reports, "distributed
according to their respective proportions").
Deviations: a report is drawn once, however many diseases it states, and a sentence is kept once, with the first study
that says it. The paper's code keeps a report once per disease, and takes the reports of the test split.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from radweave.core.config import Config, Count
from radweave.labels.text import fold, sentences
from radweave.methods.model import TrainingView
from radweave.nn.heads import POSITIVE
from radweave.nn.memory.bank import Bank, patient_code
from radweave.nn.text_encoder import TextPart

TEXTS_AT_ONCE = 64


class ReportDrawConfig(Config):
    """Content of the memory: the ``unit``, and the number of reports."""

    unit: Literal["sentence", "report"] = "sentence"
    num_reports: Count = 6000


def draw_reports(class_states: Int[Tensor, "studies classes"], number: int, seed: int) -> list[int]:
    """Rows of ``number`` studies, or of all if there are fewer, in the order of the split.

    Class k gets floor(number * n_k / sum n) places, n_k its positive studies; what rounding leaves goes to the most
    frequent. Rare classes choose first, a study is chosen once, and places that stay empty are filled from the rest.
    """
    total = len(class_states)
    if number >= total:
        return list(range(total))
    positive = (class_states == POSITIVE).numpy()
    counts = positive.sum(0)
    quotas = number * counts // max(1, int(counts.sum()))
    if counts.any():
        quotas[int(counts.argmax())] += number - int(quotas.sum())
    rng = np.random.default_rng(seed)
    free = np.ones(total, dtype=bool)
    for place in np.argsort(counts, kind="stable"):
        candidates = rng.permutation(np.flatnonzero(positive[:, place] & free))
        free[candidates[: quotas[place]]] = False
    rest = rng.permutation(np.flatnonzero(free))
    free[rest[: number - int((~free).sum())]] = False
    chosen: list[int] = np.flatnonzero(~free).tolist()
    return chosen


def report_sentences(text: str) -> list[str]:
    """The sentences of a report as they are written, without their end marks."""
    pieces = (text[start : start + len(part)].strip() for start, part in sentences(fold(text)))
    return [piece for piece in pieces if piece]


def build_report_bank(training: TrainingView, encoder: TextPart, config: ReportDrawConfig) -> Bank:
    """Encode the drawn texts: ``patterns`` (N, W), and rows with study, patient code, text and the study's diseases."""
    states = training.class_states
    rows: list[dict[str, Any]] = []
    known_texts: set[str] = set()
    for number in draw_reports(states, config.num_reports, training.seed):
        example = training.examples[number]
        text = example.report or ""
        for piece in report_sentences(text) if config.unit == "sentence" else [text]:
            if piece.casefold() in known_texts:
                continue
            known_texts.add(piece.casefold())
            positive = torch.nonzero(states[number] == POSITIVE).flatten().tolist()
            rows.append(
                {
                    "study_id": example.study_id,
                    "patient": patient_code(example.patient_id),
                    "text": piece,
                    "diseases": [training.classes[place] for place in positive],
                }
            )
    texts = [row["text"] for row in rows]
    encoded = [encoder.encode(texts[at : at + TEXTS_AT_ONCE]).cpu() for at in range(0, len(texts), TEXTS_AT_ONCE)]
    patterns = torch.cat(encoded) if encoded else torch.zeros(0, encoder.width)
    return Bank({"patterns": patterns}, tuple(rows))
