"""What was made of a batch before the decoder, and how it is shown to users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from radweave.base.batch import Batch
from radweave.base.map_kinds import KEY as MAP_KIND
from radweave.methods.diffrgennet.difference import METRICS, Cases
from radweave.methods.diffrgennet.diseases import STATES
from radweave.methods.diffrgennet.retrieval import Recalled
from radweave.nn.flexiroute import Routed
from radweave.nn.supervision import POSITIVE
from radweave.nn.views import ViewTokens


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """Image tokens of all views in the shared width (B, M, d), which are there, and their mean (B, d)."""

    tokens: Float[Tensor, "batch cells dim"]
    mask: Bool[Tensor, "batch cells"]
    mean: Float[Tensor, "batch dim"]
    views: ViewTokens


@dataclass(frozen=True, slots=True)
class StudyFindings:
    """What was made of a batch before the decoder; N cases, a prior being the last of them."""

    image: ImageTokens
    recalled: Recalled
    cases: Cases
    apart: Float[Tensor, "batch cases 3"]
    similar: Routed
    changes: Cases
    difference: Routed
    logits: Float[Tensor, "batch classes 4"]
    priors: dict[int, tuple[str, str]]

    @property
    def log_odds(self) -> Float[Tensor, "batch classes"]:
        """Of a class being stated against every other state."""
        states = self.logits.float()
        others = torch.cat([states[..., :POSITIVE], states[..., POSITIVE + 1 :]], dim=-1)
        return states[..., POSITIVE] - others.logsumexp(-1)

    def evidence(self, row: int, classes: tuple[str, ...]) -> dict[str, Any]:
        """One study's evidence; maps are over its own views, (V, h, w), and sum to 1 over all of them."""
        probabilities = self.logits[row].float().softmax(-1)
        shown: dict[str, Any] = {
            "class_probabilities": dict(zip(classes, probabilities[:, POSITIVE].tolist(), strict=True)),
            "disease_states": {
                name: STATES[state] for name, state in zip(classes, probabilities.argmax(-1).tolist(), strict=True)
            },
            "recalled": self._recalled(row),
            "routing": {
                name: [route[row].tolist() for route in routed.routes]
                for name, routed in (("similar", self.similar), ("difference", self.difference))
                if routed.tokens.shape[1]
            },
            "attention_maps": self._maps(row),
            MAP_KIND: "case attention",
        }
        return shown

    def _recalled(self, row: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [
            {
                "kind": "report",
                "study_id": case.study_id,
                "text": case.text,
                "scores": {"similarity": case.similarity, **self._distances(row, place)},
            }
            for place, case in enumerate(self.recalled.cases[row])
        ]
        if row in self.priors:
            study_id, text = self.priors[row]
            scores = self._distances(row, self.cases.present.shape[1] - 1)
            found.append({"kind": "report", "study_id": study_id, "text": text, "scores": scores, "is_prior": True})
        return found

    def _distances(self, row: int, place: int) -> dict[str, float]:
        return dict(zip(METRICS, self.apart[row, place].tolist(), strict=True))

    def _maps(self, row: int) -> dict[str, Any]:
        """Where the cases read the image in the last layer of each pass, mean over the study's cases."""
        there, views = self.cases.present[row], self.image.views
        maps = {}
        for name, routed in (("similar reports", self.similar), ("differences", self.difference)):
            if routed.attention is not None and there.any():
                mean = routed.attention[row][there].mean(0)
                shape = (len(views.view_mask[row]), *views.grid)
                maps[name] = mean.view(shape)[views.view_mask[row]].float().cpu().numpy()
        return maps


def priors_by_row(batch: Batch) -> dict[int, tuple[str, str]]:
    """Row of the batch -> study id and report of its prior."""
    if batch.priors is None or batch.priors.reports is None:
        return {}
    return dict(zip(batch.prior_of, zip(batch.priors.study_ids, batch.priors.reports, strict=True), strict=True))
