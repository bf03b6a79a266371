"""Difference of a scan from its reference, and its prompt: global delta, local delta, generator (Eq. 4-8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.core.config import Config, Heads, Ratio, Slots, Width
from radweave.methods.diffvp.pool import POOL, BuildPool, Reference, pool_layout
from radweave.nn.connector import ViewTokens
from radweave.nn.memory.bank import Bank, BankLayout
from radweave.nn.prompt import Slot
from radweave.nn.query_transformer import QueryLayer, QueryOutput
from radweave.nn.study_norm import StudyNorm

EPSILON = 1e-5
TOP_TOKENS = 8
"""The paper reports the share of importance that the strongest 8 of 32 tokens hold."""

Latents = Float[Tensor, "batch latents dim"]


def token_importance(target: Latents, reference: Latents) -> Float[Tensor, "batch latents"]:
    """S_i = |I_i - I_r,i|^2."""
    return (target - reference).square().sum(-1)


def importance_weights(importance: Float[Tensor, "batch latents"]) -> Float[Tensor, "batch latents"]:
    """w_i = S_i / (sum_j S_j + epsilon) (Eq. 6)."""
    return importance / (importance.sum(-1, keepdim=True) + EPSILON)


def local_delta(target: Latents, reference: Latents) -> Float[Tensor, "batch dim"]:
    """sum_i w_i (I_i - I_r,i) (Eq. 7). Exactly 0 for equal scans; its sign turns where the two are exchanged."""
    weights = importance_weights(token_importance(target, reference))
    return (weights[:, :, None] * (target - reference)).sum(1)


def top_share(importance: Float[Tensor, "batch latents"], top: int = TOP_TOKENS) -> Float[Tensor, " batch"]:
    """The share of the importance that the ``top`` strongest tokens hold; 0 where nothing differs."""
    strongest = importance.topk(min(top, importance.shape[1]), dim=1).values.sum(1)
    return strongest / importance.sum(1).clamp(min=EPSILON)


class GlobalDelta(nn.Module):
    """Transformer([delta; I + s_0; I_r + s_1])_delta: a query that reads both scans at once (Eq. 4).

    Of the layer's output only the query's row is used, so only that row is computed. The segments s_0, s_1 say which
    tokens are the reference's; without them (``segments`` false) the layer could not tell.
    """

    def __init__(self, dim: int, num_heads: int, *, dropout: float, ffn_ratio: float, segments: bool) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(dim) * dim**-0.5)
        self.segments = nn.Embedding(2, dim) if segments else None
        self.layer = QueryLayer(dim, dim, num_heads, self_attention=False, dropout=dropout, ffn_ratio=ffn_ratio)

    def forward(self, *scans: Latents) -> Float[Tensor, "batch dim"]:
        """Read the target and the reference, or one scan of differences."""
        query = self.query.expand(len(scans[0]), 1, -1)
        if self.segments is not None:
            scans = tuple(tokens + self.segments.weight[number] for number, tokens in enumerate(scans))
        out, _ = self.layer(query, torch.cat([query, *scans], dim=1), None)
        delta: Tensor = out[:, 0]
        return delta


PromptNorm = Literal["none", "layer", "studies"]


class PromptGenerator(nn.Module):
    """Delta_prompt = N(Projector([global; local])): p tokens of the language model's width H (Eq. 8).

    An MLP fuses what there is of the two and a linear map expands it. N is nothing, as in Eq. 8, a LayerNorm, which
    gives the prompt the scale of the other visual tokens, or ``StudyNorm``. Without the last the biases of the maps
    make up almost all of the prompt, which then is the same for every study (docs/methods/diffvp.md).
    """

    def __init__(self, in_dim: int, hidden: int, num_tokens: int, width: int, norm: PromptNorm) -> None:
        super().__init__()
        self.num_tokens = num_tokens
        self.fuse = nn.Sequential(nn.Linear(in_dim, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU())
        self.expand = nn.Linear(hidden, num_tokens * width)
        self.norm: nn.Module = nn.LayerNorm(width) if norm == "layer" else nn.Identity()
        if norm == "studies":
            self.norm = StudyNorm(num_tokens, width)

    def forward(self, delta: Float[Tensor, "batch in_dim"]) -> Float[Tensor, "batch tokens width"]:
        out: Tensor = self.norm(self.expand(self.fuse(delta)).unflatten(1, (self.num_tokens, -1)))
        return out


@dataclass(frozen=True, slots=True)
class Comparison:
    """Each study's reference, the two sides of the difference among latent tokens, and the prompt made of them.

    ``reading`` is how the latents of the target came about, off the views ``views``. Where pixels were subtracted the
    target is a scan of differences, read by itself and compared with zeros.
    """

    reference: Reference
    views: ViewTokens
    reading: QueryOutput
    compared: Latents
    prompt: Float[Tensor, "batch tokens width"]

    @property
    def target(self) -> Latents:
        """The latents that are compared."""
        return self.reading.tokens

    def importance(self) -> Float[Tensor, "batch latents"]:
        """S_i of every latent token."""
        return token_importance(self.target, self.compared).float()

    def slot(self) -> Slot:
        """The prompt, absent where there is no reference."""
        return self.prompt, self.reference.present[:, None].expand(self.prompt.shape[:2])


@runtime_checkable
class Scans(Protocol):
    """The scans of a batch, and what a difference may ask of the model that sees them."""

    @property
    def views(self) -> ViewTokens: ...

    def read(self, views: ViewTokens | None = None) -> QueryOutput:
        """Latent tokens of these views, or of the scans themselves, and what each of them looked at."""
        ...

    def encode(self, pixels: ViewTokens) -> ViewTokens:
        """Tokens of views that are given as pixels."""
        ...

    def reference(self, *, pixels: bool = False) -> tuple[ViewTokens, Reference]:
        """The scans and what they are compared with, as tokens or as pixels."""
        ...


@dataclass(frozen=True, slots=True)
class Deltas:
    """Global and local delta (B, d), or None for the one that is left out."""

    whole: Float[Tensor, "batch dim"] | None
    local: Float[Tensor, "batch dim"] | None

    def concatenated(self) -> Float[Tensor, "batch joined"]:
        return torch.cat([delta for delta in (self.whole, self.local) if delta is not None], dim=1)


class SemanticDifference(nn.Module):
    """The difference of two scans among their latent tokens, as a prompt."""

    def __init__(self, global_delta: GlobalDelta | None, generator: PromptGenerator, *, local: bool) -> None:
        super().__init__()
        self.global_delta = global_delta
        self.generator = generator
        self.prompt_tokens = generator.num_tokens
        self.local = local

    def deltas(self, target: Latents, reference: Latents) -> Deltas:
        return Deltas(
            whole=None if self.global_delta is None else self.global_delta(target, reference),
            local=local_delta(target, reference) if self.local else None,
        )

    def forward(self, target: Latents, reference: Latents) -> Float[Tensor, "batch tokens width"]:
        out: Tensor = self.generator(self.deltas(target, reference).concatenated())
        return out

    def banks(self, build: BuildPool) -> dict[str, Bank]:
        """References are compared as the frozen encoder's tokens."""
        return {POOL: build(pixels=False)}

    def layouts(self, dim: int) -> dict[str, BankLayout]:
        """Layout of the pool; ``dim`` is the width of the encoder's tokens."""
        return {POOL: pool_layout("tokens", dim)}

    def compare(self, scans: Scans) -> Comparison:
        """Read the references as the scans are read."""
        _, reference = scans.reference()
        reading, compared = scans.read(), scans.read(reference.views).tokens
        return Comparison(reference, scans.views, reading, compared, self(reading.tokens, compared))


class PixelDifference(nn.Module):
    """The same prompt, of scans that were subtracted as pixels (Figure 5b, "Pixel-level Diff").

    The subtracted scan goes through encoder and resampler to latent tokens, which stand where I - I_r stood:
    the global query reads them alone, and in the local delta they are the residuals.
    """

    def __init__(self, global_delta: GlobalDelta, generator: PromptGenerator) -> None:
        super().__init__()
        self.global_delta = global_delta
        self.generator = generator
        self.prompt_tokens = generator.num_tokens

    def forward(self, residuals: Latents) -> Float[Tensor, "batch tokens width"]:
        deltas = Deltas(self.global_delta(residuals), local_delta(residuals, torch.zeros_like(residuals)))
        out: Tensor = self.generator(deltas.concatenated())
        return out

    def banks(self, build: BuildPool) -> dict[str, Bank]:
        """References are compared as images."""
        return {POOL: build(pixels=True)}

    def layouts(self, dim: int) -> dict[str, BankLayout]:
        """Layout of the pool; pixels are checked against a scan, when there is one."""
        return {POOL: pool_layout()}

    def compare(self, scans: Scans) -> Comparison:
        """(X - X_r + 1) / 2, over the views that both have, through encoder and resampler."""
        target, reference = scans.reference(pixels=True)
        number = min(target.tokens.shape[1], reference.views.tokens.shape[1])
        shared = target.view_mask[:, :number] & reference.views.view_mask[:, :number]
        subtracted = (target.tokens[:, :number] - reference.views.tokens[:, :number] + 1) / 2
        views = scans.encode(ViewTokens(subtracted, shared, target.view_ids[:, :number], ()))
        reading = scans.read(views)
        return Comparison(reference, views, reading, torch.zeros_like(reading.tokens), self(reading.tokens))


class NoDifference(nn.Module):
    """The target alone: the rows without delta. Nothing is compared, and the prompt has no token."""

    prompt_tokens = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def banks(self, build: BuildPool) -> dict[str, Bank]:
        return {}

    def layouts(self, dim: int) -> dict[str, BankLayout]:
        return {}

    def compare(self, scans: Scans) -> Comparison:
        views = scans.read()
        none = QueryOutput(views.tokens[:, :0], views.attention[:, :0])
        prompt = none.tokens.new_zeros(len(none.tokens), 0, self.width)
        return Comparison(Reference.nobody(scans.views), scans.views, none, none.tokens, prompt)


Difference = SemanticDifference | PixelDifference | NoDifference


class NoDifferenceConfig(Config):
    """No reference and no prompt of differences."""

    kind: Literal["none"] = "none"

    def build(self, dim: int, width: int) -> NoDifference:
        return NoDifference(width)


class DifferenceConfig(Config):
    """The deltas in use, and the p tokens (``prompt_tokens``) made of them.

    ``both``, ``global`` and ``local`` compare latent tokens; ``pixel`` subtracts the scans themselves. ``hidden`` is
    the width of the fused delta, None the latents' own. ``segments`` tells target and reference apart for the global
    query. ``norm`` is that of the prompt: ``none`` as in Eq. 8, ``layer`` per token, ``studies`` per channel of each
    token over studies.
    """

    kind: Literal["both", "global", "local", "pixel"] = "both"
    prompt_tokens: Slots = 16
    hidden: Width | None = None
    num_heads: Heads = 8
    dropout: float = Field(default=0.0, ge=0, lt=1)
    ffn_ratio: Ratio = 4.0
    segments: bool = True
    norm: PromptNorm = "layer"

    def build(self, dim: int, width: int) -> SemanticDifference | PixelDifference:
        whole, local = self.kind != "local", self.kind != "global"
        global_delta = None
        if whole:
            segments = self.segments and self.kind != "pixel"
            global_delta = GlobalDelta(
                dim, self.num_heads, dropout=self.dropout, ffn_ratio=self.ffn_ratio, segments=segments
            )
        generator = PromptGenerator(dim * (whole + local), self.hidden or dim, self.prompt_tokens, width, self.norm)
        if self.kind == "pixel":
            assert global_delta is not None
            return PixelDifference(global_delta, generator)
        return SemanticDifference(global_delta, generator, local=local)


DifferenceSetting = Annotated[NoDifferenceConfig | DifferenceConfig, Field(discriminator="kind")]
