"""A model that gives every kind of evidence, for pages that show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from radweave.core.batch import Batch, Generation
from radweave.data.tokenizer import encode
from radweave.engine.restore import Run
from radweave.inference.predictor import Predictor
from radweave.nn.decoding import OWN_DECODER

TEXT = "The heart is enlarged. There is a pneumothorax. No effusion. The lungs are clear."
EVIL = '<script>alert(1)</script> & "quoted" \x07\u202e'


def one_hot(shape: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    weights = np.zeros(shape)
    weights[place] = 1.0
    return weights


class AllEvidence:
    """Writes one text, gives every kind of evidence, and remembers what it was asked."""

    def __init__(self, run: Run, text: str = TEXT) -> None:
        self.ids = encode(run.tokenizer, text)
        self.patients: list[str] = []
        self.class_labels: list[object] = []
        self.priors: list[list[str]] = []

    def loss(self, batch: Batch, terms: Any) -> dict[str, torch.Tensor]:
        raise AssertionError("nothing is trained here")

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(1)])

    def generate(self, batch: Batch, decoding: Any) -> Generation:
        self.patients += batch.patient_ids
        self.class_labels.append(batch.class_labels)
        self.priors.append([] if batch.priors is None else batch.priors.study_ids)
        values = {
            "token_log_probs": [-0.01] * len(self.ids),
            "class_probabilities": {"Cardiomegaly": torch.tensor(0.9), "Pneumothorax": 0.05, "Atelectasis": 0.7},
            "attention_maps": {
                "Cardiomegaly": torch.tensor(one_hot((2, 4, 4), (0, 1, 1)), dtype=torch.bfloat16),
                "Pneumothorax": np.full((2, 4, 4), 1 / 32, dtype=np.float32),
                "Edema": one_hot((3, 3), (0, 0)),
            },
            "recalled": [
                {"kind": "report", "study_id": "t1", "text": f"No effusion. {EVIL}", "scores": {"image": 0.5}},
                {
                    "kind": "region",
                    "study_id": "t2",
                    "scores": {"cosine": float("nan")},
                    "for": "Cardiomegaly",
                    "cell": 7,
                },
                {"kind": "sentence", "study_id": "t3", "text": "Edema.", "scores": {"weight": 0.1}, "for": "Edema"},
            ],
            "sentence_fit": [{"text": "No effusion.", "image_similarity": 0.123}],
            "gate": np.float32(0.25),
            "tokens": torch.zeros(8, 16),
        }
        return Generation([self.ids] * len(batch), [values] * len(batch))


def stubbed(run: Run) -> Predictor:
    predictor = Predictor.of(run, decoding=[OWN_DECODER])
    return replace(predictor, model=AllEvidence(run), warnings=("trained on synthetic phantom images only",))
