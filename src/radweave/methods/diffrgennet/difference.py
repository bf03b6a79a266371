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
from radweave.methods.diffrgennet.reading import sine_positions
from radweave.nn.global_batch import count_over_batch

Metric = Literal["l2", "cosine", "dot"]
METRICS: tuple[Metric, ...] = ("l2", "cosine", "dot")
DotScale = Literal["sqrt_dim", "literal"]
Space = Literal["shared", "matching"]
"""Space in which image and case are compared: the model's shared width, or the space that Neg-Pos matching aligns."""
ChangeNorm = Literal["none", "batch"]


class CaseEmbedding(nn.Module):
    """E_i = LN(W t_i) of a report, and a mark that tells the patient's own prior from other cases.

    With ``ranks`` tokens about a case also say at which place it was retrieved, so that a change feature is told from
    that of the next case, and belongs to the case of its place.
    """

    def __init__(self, text_dim: int, dim: int, *, ranks: bool = False) -> None:
        super().__init__()
        self.projection = nn.Linear(text_dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.mark = nn.Embedding(2, dim)
        self.ranks = ranks
        nn.init.normal_(self.mark.weight, std=0.02)

    def forward(self, text: Float[Tensor, "batch cases text_dim"]) -> Float[Tensor, "batch cases dim"]:
        out: Tensor = self.norm(self.projection(text))
        return out

    def marked(
        self, tokens: Float[Tensor, "batch cases dim"], is_prior: Bool[Tensor, "batch cases"]
    ) -> Float[Tensor, "batch cases dim"]:
        """Tokens about cases, with the mark and, if asked for, the rank."""
        out: Tensor = tokens + self.mark(is_prior.long())
        if self.ranks:
            out = out + sine_positions((tokens.shape[1],), tokens.shape[-1]).to(tokens)
        return out


class CaseEmbeddingConfig(Config):
    """A linear map and a LayerNorm; the paper names neither. ``ranks`` adds the place among the retrieved cases."""

    ranks: bool = False

    def build(self, text_dim: int, dim: int) -> CaseEmbedding:
        return CaseEmbedding(text_dim, dim, ranks=self.ranks)


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


class CaseNorm(nn.Module):
    """Batch normalisation of every channel over all cases of all studies; absent cases count for nothing and are 0."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(dim, affine=False)

    def forward(
        self, tokens: Float[Tensor, "batch cases dim"], present: Bool[Tensor, "batch cases"]
    ) -> Float[Tensor, "batch cases dim"]:
        """Normalise; a training batch of fewer than two cases has no variance, and goes by the running statistics."""
        norm, rows = self.norm, tokens[present]
        if norm.training and count_over_batch(len(rows)) < 2:
            assert norm.running_mean is not None
            assert norm.running_var is not None
            rows = (rows - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        else:
            rows = norm(rows)
        out = torch.zeros_like(tokens)
        out[present] = rows.to(out.dtype)
        return out


class FeatureDifference(nn.Module):
    """dif_i = MLP([|Z - E_i|; cos(Z, E_i); Z . E_i / sqrt(d)]), one token for each case (Eq. 1).

    Three numbers of vectors that nothing aligned hardly differ between studies, and their tokens neither. With
    ``norm`` batch the network's input and output are normalised over all cases (``CaseNorm``); with ``vector`` it also
    reads in which way the case differs, Z / |Z| - E_i / |E_i|.

    Args:
        dim: width of the tokens.
        width: width of the space in which Z and E_i are compared.
        space: which space that is; the caller computes Z and E_i in it.
    """

    tokens_per_case = 1

    def __init__(
        self,
        dim: int,
        metrics: tuple[Metric, ...],
        dot_scale: DotScale,
        hidden: int,
        *,
        width: int | None = None,
        space: Space = "shared",
        norm: ChangeNorm = "none",
        vector: bool = False,
    ) -> None:
        super().__init__()
        self.columns = [METRICS.index(metric) for metric in metrics]
        self.dot_scale = dot_scale
        self.space: Space = space
        self.vector = vector
        values = len(metrics) + (vector * (width or dim))
        self.mlp = nn.Sequential(nn.Linear(values, hidden), nn.GELU(), nn.Linear(hidden, dim))
        self.norms = nn.ModuleList(CaseNorm(size) for size in (values, dim)) if norm == "batch" else None

    def forward(
        self,
        image: Float[Tensor, "batch width"],
        cases: Float[Tensor, "batch cases width"],
        present: Bool[Tensor, "batch cases"],
    ) -> Float[Tensor, "batch cases dim"]:
        """Change features."""
        values = self.apart(image, cases)[..., self.columns]
        if self.vector:
            values = torch.cat([values, F.normalize(image, dim=-1)[:, None] - F.normalize(cases, dim=-1)], dim=-1)
        if self.norms is None:
            out: Tensor = self.mlp(values)
            return out
        before, after = self.norms
        normed: Tensor = after(self.mlp(before(values, present)), present)
        return normed

    def apart(
        self, image: Float[Tensor, "batch width"], cases: Float[Tensor, "batch cases width"]
    ) -> Float[Tensor, "batch cases 3"]:
        """All three distances, as they are before any normalisation."""
        return distances(image, cases, self.dot_scale)

    def of(self, image: Float[Tensor, "batch width"], cases: Cases) -> Cases:
        """A token for what each case differs in; ``cases`` holds the vectors that are compared."""
        return replace(cases, tokens=self(image, cases.tokens, cases.present))


class NoDifference(nn.Module):
    """No change features, and no difference pass ("w/o Feature Difference" of Table 2)."""

    space: Space = "shared"
    tokens_per_case = 0

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def apart(
        self, image: Float[Tensor, "batch width"], cases: Float[Tensor, "batch cases width"]
    ) -> Float[Tensor, "batch cases 3"]:
        """The distances, as evidence alone."""
        return distances(image, cases)

    def of(self, image: Float[Tensor, "batch width"], cases: Cases) -> Cases:
        none = cases.tokens.new_zeros(len(cases.tokens), 0, self.dim)
        return Cases(none, cases.present[:, :0], cases.is_prior[:, :0])


class NoDifferenceConfig(Config):
    """Switch the module off."""

    kind: Literal["none"] = "none"

    def build(self, dim: int, width: int) -> NoDifference:
        return NoDifference(dim)


class FeatureDifferenceConfig(Config):
    """The three distances, or some of them (Table 4); the other options are those of ``FeatureDifference``.

    The space ``matching`` is the shared one where there is no Neg-Pos matching.
    """

    kind: Literal["distances"] = "distances"
    metrics: tuple[Metric, ...] = METRICS
    dot_scale: DotScale = "sqrt_dim"
    hidden: Width = 128
    space: Space = "shared"
    norm: ChangeNorm = "none"
    vector: bool = False

    @field_validator("metrics")
    @classmethod
    def _some_and_each_once(cls, metrics: tuple[Metric, ...]) -> tuple[Metric, ...]:
        if not metrics or len(set(metrics)) < len(metrics):
            raise ValueError("name one metric or more, each once; to leave all out give model.difference=none")
        return metrics

    def build(self, dim: int, width: int) -> FeatureDifference:
        return FeatureDifference(
            dim,
            self.metrics,
            self.dot_scale,
            self.hidden,
            width=width,
            space=self.space,
            norm=self.norm,
            vector=self.vector,
        )


DifferenceConfig = Annotated[NoDifferenceConfig | FeatureDifferenceConfig, Field(discriminator="kind")]
