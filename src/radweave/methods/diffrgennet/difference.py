"""Difference of a study from a retrieved case: report features in the image's space, and Feature Difference over them.

Source: the paper's Sec. 2.1, Eq. 1. Shape letters: B batch, N cases, T width of the text encoder, d shared width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from pydantic import Field, field_validator
from torch import Tensor, nn

from radweave.core.config import Config, Width

Metric = Literal["l2", "cosine", "dot"]
METRICS: tuple[Metric, ...] = ("l2", "cosine", "dot")
DotScale = Literal["sqrt_dim", "literal"]


class CaseEmbedding(nn.Module):
    """E_i = LN(W t_i) of a report, and a mark that tells the patient's own prior from other cases."""

    def __init__(self, text_dim: int, dim: int) -> None:
        super().__init__()
        self.projection = nn.Linear(text_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.mark = nn.Embedding(2, dim)
        nn.init.normal_(self.mark.weight, std=0.02)

    def forward(self, text: Float[Tensor, "batch cases text_dim"]) -> Float[Tensor, "batch cases dim"]:
        out: Tensor = self.norm(self.projection(text))
        return out

    def marked(
        self, tokens: Float[Tensor, "batch cases dim"], is_prior: Bool[Tensor, "batch cases"]
    ) -> Float[Tensor, "batch cases dim"]:
        """Tokens about cases, with the mark."""
        out: Tensor = tokens + self.mark(is_prior.long())
        return out


class CaseEmbeddingConfig(Config):
    """A linear map and a LayerNorm; the paper names neither."""

    def build(self, text_dim: int, dim: int) -> CaseEmbedding:
        return CaseEmbedding(text_dim, dim)


@dataclass(frozen=True, slots=True)
class Cases:
    """Tokens about the N cases of each study, which cases are there, and which is the patient's own prior."""

    tokens: Float[Tensor, "batch cases dim"]
    present: Bool[Tensor, "batch cases"]
    is_prior: Bool[Tensor, "batch cases"]


def distances(
    image: Float[Tensor, "batch dim"], cases: Float[Tensor, "batch cases dim"], dot_scale: DotScale = "sqrt_dim"
) -> Float[Tensor, "batch cases 3"]:
    """|Z - E_i|, cos(Z, E_i) and Z . E_i / sqrt(d), in the order of ``METRICS``; ``literal`` does not divide."""
    image = image[:, None]
    length = image.shape[-1] ** 0.5 if dot_scale == "sqrt_dim" else 1.0
    difference = image - cases
    # The gradient of a root is infinite at 0.
    euclidean = (difference.square().sum(-1) + 1e-12).sqrt()
    return torch.stack([euclidean, F.cosine_similarity(image, cases, dim=-1), (image * cases).sum(-1) / length], dim=-1)


class FeatureDifference(nn.Module):
    """dif_i = MLP([|Z - E_i|; cos(Z, E_i); Z . E_i / sqrt(d)]), one token for each case (Eq. 1)."""

    def __init__(self, dim: int, metrics: tuple[Metric, ...], dot_scale: DotScale, hidden: int) -> None:
        super().__init__()
        self.columns = [METRICS.index(metric) for metric in metrics]
        self.dot_scale = dot_scale
        self.mlp = nn.Sequential(nn.Linear(len(metrics), hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(
        self, image: Float[Tensor, "batch dim"], cases: Float[Tensor, "batch cases dim"]
    ) -> Float[Tensor, "batch cases dim"]:
        out: Tensor = self.mlp(self.apart(image, cases)[..., self.columns])
        return out

    def apart(
        self, image: Float[Tensor, "batch dim"], cases: Float[Tensor, "batch cases dim"]
    ) -> Float[Tensor, "batch cases 3"]:
        """All three distances, as they go into the network."""
        return distances(image, cases, self.dot_scale)

    def of(self, image: Float[Tensor, "batch dim"], cases: Cases) -> Cases:
        """A token for what each case differs in."""
        return replace(cases, tokens=self(image, cases.tokens))


class NoDifference(nn.Module):
    """No change features, and no difference pass ("w/o Feature Difference" of Table 2)."""

    def apart(
        self, image: Float[Tensor, "batch dim"], cases: Float[Tensor, "batch cases dim"]
    ) -> Float[Tensor, "batch cases 3"]:
        """The distances, as evidence alone."""
        return distances(image, cases)

    def of(self, image: Float[Tensor, "batch dim"], cases: Cases) -> Cases:
        return Cases(cases.tokens[:, :0], cases.present[:, :0], cases.is_prior[:, :0])


class NoDifferenceConfig(Config):
    """Switch the module off."""

    kind: Literal["none"] = "none"

    def build(self, dim: int) -> NoDifference:
        return NoDifference()


class FeatureDifferenceConfig(Config):
    """The three distances, or some of them (Table 4)."""

    kind: Literal["distances"] = "distances"
    metrics: tuple[Metric, ...] = METRICS
    dot_scale: DotScale = "sqrt_dim"
    hidden: Width = 128

    @field_validator("metrics")
    @classmethod
    def _some_and_each_once(cls, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        if not metrics or len(set(metrics)) < len(metrics):
            raise ValueError("name one metric or more, each once; to leave all out give model.difference=none")
        return metrics

    def build(self, dim: int) -> FeatureDifference:
        return FeatureDifference(dim, self.metrics, self.dot_scale, self.hidden)


DifferenceConfig = Annotated[NoDifferenceConfig | FeatureDifferenceConfig, Field(discriminator="kind")]
