"""Tokens that join the patches on their way to the language model: nothing, the disease tokens, their mean, or DVAF.

Source: the paper's Eq. 5-7 and Table 5. Shape letters: B batch, N patches of all views, K disease tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads
from radweave.nn.query_transformer import CrossAttention
from radweave.nn.study_norm import MARKS, OverStudies, over_studies


@dataclass(frozen=True, slots=True)
class Fused:
    """Tokens to append to the patches (B, E, D); for DVAF also the gate (B, D) and each class's share (B, K)."""

    tokens: Float[Tensor, "batch extra dim"]
    gate: Float[Tensor, "batch dim"] | None = None
    shares: Float[Tensor, "batch classes"] | None = None


class NoFusion(nn.Module):
    """Patches only: the baseline of Table 4."""

    def appended(self, num_classes: int) -> int:
        """The number of tokens that are appended."""
        return 0

    def forward(self, diseases: Tensor, patches: Tensor, mask: Tensor) -> Fused:
        return Fused(patches[:, :0])


class ConcatFusion(nn.Module):
    """All K disease tokens are appended ("simple concatenation" of Table 5)."""

    def appended(self, num_classes: int) -> int:
        """The number of tokens that are appended."""
        return num_classes

    def forward(self, diseases: Tensor, patches: Tensor, mask: Tensor) -> Fused:
        return Fused(diseases)


class MeanFusion(nn.Module):
    """(mean of the patches + mean of the disease tokens) / 2 is appended ("mean pooling" of Table 5)."""

    def appended(self, num_classes: int) -> int:
        """The number of tokens that are appended."""
        return 1

    def forward(self, diseases: Tensor, patches: Tensor, mask: Tensor) -> Fused:
        return Fused(((diseases.mean(1) + masked_mean(patches, mask)) / 2)[:, None])


class Dvaf(nn.Module):
    """Disease-visual attention fusion.

        C = LN(T' + CrossAttention(T', V)),   R = LN(C + SelfAttention(C)),   t = sum_k softmax(u . R)_k R_k   (Eq. 5)
        v = mean(V),   g = sigmoid(W [v; t] + b),   fused = g * t + (1 - g) * v                               (Eq. 6)

    With ``class_tokens`` the R_k stand beside the fused token. ``norm`` takes out of the appended tokens what all
    studies share.

    Deviations: residuals and norms, which the paper does not mention.
    """

    def __init__(
        self, dim: int, num_heads: int, num_classes: int, *, class_tokens: bool = False, norm: OverStudies = "none"
    ) -> None:
        super().__init__()
        self.cross_attention = CrossAttention(dim, dim, num_heads)
        self.cross_norm = nn.LayerNorm(dim)
        self.self_attention = CrossAttention(dim, dim, num_heads)
        self.self_norm = nn.LayerNorm(dim)
        self.pool = nn.Linear(dim, 1, bias=False)
        self.gate = nn.Linear(2 * dim, dim)
        self.class_tokens = class_tokens
        self.norm = over_studies(norm, 1 + num_classes * class_tokens, dim, MARKS)

    def appended(self, num_classes: int) -> int:
        """The number of tokens that are appended."""
        return 1 + num_classes * self.class_tokens

    def forward(
        self,
        diseases: Float[Tensor, "batch classes dim"],
        patches: Float[Tensor, "batch patches dim"],
        mask: Bool[Tensor, "batch patches"],
    ) -> Fused:
        """Fuse refined disease tokens with the patches that are there."""
        located = self.cross_norm(diseases + self.cross_attention.read(diseases, patches, mask))
        related = self.self_norm(located + self.self_attention.read(located, located))
        shares = self.pool(related).softmax(1)
        disease = (shares * related).sum(1)
        visual = masked_mean(patches, mask)
        gate = torch.sigmoid(self.gate(torch.cat([visual, disease], dim=-1)))
        tokens = (gate * disease + (1 - gate) * visual)[:, None]
        if self.class_tokens:
            tokens = torch.cat([tokens, related], dim=1)
        return Fused(self.norm(tokens), gate, shares.squeeze(-1))


def masked_mean(
    patches: Float[Tensor, "batch patches dim"], mask: Bool[Tensor, "batch patches"]
) -> Float[Tensor, "batch dim"]:
    """Mean over the patches that are there."""
    weight = mask[:, :, None].to(patches.dtype)
    return (patches * weight).sum(1) / weight.sum(1)


class PlainFusionConfig(Config):
    """Nothing to learn: patches only, the disease tokens appended, or the mean of both means."""

    kind: Literal["none", "concat", "mean"] = "none"

    def build(self, dim: int, num_classes: int) -> NoFusion | ConcatFusion | MeanFusion:
        if self.kind == "mean":
            return MeanFusion()
        return ConcatFusion() if self.kind == "concat" else NoFusion()


class DvafConfig(Config):
    """Append the gated fusion; the defaults are the printed form.

    ``class_tokens`` appends the refined token of every class too. ``norm=studies`` normalises what is appended over
    studies.
    """

    kind: Literal["dvaf"] = "dvaf"
    num_heads: Heads = 8
    class_tokens: bool = False
    norm: OverStudies = "none"

    def build(self, dim: int, num_classes: int) -> Dvaf:
        return Dvaf(dim, self.num_heads, num_classes, class_tokens=self.class_tokens, norm=self.norm)


FusionConfig = Annotated[PlainFusionConfig | DvafConfig, Field(discriminator="kind")]
