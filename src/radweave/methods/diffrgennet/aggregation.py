"""The two passes that let cases read the image: similar reports, and change features; and what replaces FlexiRoute.

Source: the paper's Sec. 2.2; Table 3 for the replacements.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import nn

from radweave.core.config import Config, Depths, Heads, Layers, Width
from radweave.nn.flexiroute import Centers, FlexiRoute, MaskRule, NoRouting

Pass = FlexiRoute | NoRouting


class Aggregation(nn.Module):
    """The passes have weights of their own; without change features the second one has nothing to read."""

    def __init__(self, similar: Pass, difference: Pass) -> None:
        super().__init__()
        self.similar = similar
        self.difference = difference


class FlexiRouteConfig(Config):
    """FlexiRoute. Layer k routes among k + 1 masks unless ``masks_per_layer`` says otherwise; see ``nn.flexiroute``.

    The paper gives neither the temperature, nor p_k, nor the heads.
    """

    kind: Literal["flexiroute"] = "flexiroute"
    num_layers: Layers = 2
    num_heads: Heads = 4
    masks_per_layer: Depths | None = None
    mask: MaskRule = "minus_infinity"
    centers: Centers = "cyclic"
    router_hidden: Width | None = None
    temperature: float = Field(default=1.0, gt=0)
    hard: bool = False
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _a_number_of_masks_for_each_layer(self) -> FlexiRouteConfig:
        masks = self.masks_per_layer
        if masks is not None and (len(masks) != self.num_layers or min(masks) < 1):
            raise ValueError("masks_per_layer holds a number of 1 or more for each of num_layers layers")
        return self

    def build(self, dim: int, *, with_difference: bool) -> Aggregation:
        """Build both passes, or one that routes."""
        masks = self.masks_per_layer or tuple(number + 1 for number in range(1, self.num_layers + 1))

        def one() -> FlexiRoute:
            return FlexiRoute(
                dim,
                self.num_heads,
                masks,
                mask=self.mask,
                centers=self.centers,
                router_hidden=self.router_hidden,
                temperature=self.temperature,
                hard=self.hard,
                dropout=self.dropout,
            )

        return Aggregation(one(), one() if with_difference else NoRouting())


class TransformerAggregationConfig(Config):
    """Plain co-attention: every query sees the whole image."""

    kind: Literal["transformer"] = "transformer"
    num_layers: Layers = 2
    num_heads: Heads = 4
    dropout: float = Field(default=0.1, ge=0, lt=1)

    def build(self, dim: int, *, with_difference: bool) -> Aggregation:
        masks = (1,) * self.num_layers

        def one() -> FlexiRoute:
            return FlexiRoute(dim, self.num_heads, masks, dropout=self.dropout)

        return Aggregation(one(), one() if with_difference else NoRouting())


class TrarAggregationConfig(Config):
    """TRAR: one grid of attention scores under routed masks, the same number of them in every layer."""

    kind: Literal["trar"] = "trar"
    num_layers: Layers = 2
    num_heads: Heads = 4
    num_masks: Heads = 4
    temperature: float = Field(default=1.0, gt=0)
    dropout: float = Field(default=0.1, ge=0, lt=1)

    def build(self, dim: int, *, with_difference: bool) -> Aggregation:
        masks = (self.num_masks,) * self.num_layers

        def one() -> FlexiRoute:
            return FlexiRoute(
                dim,
                self.num_heads,
                masks,
                projections="shared",
                temperature=self.temperature,
                dropout=self.dropout,
            )

        return Aggregation(one(), one() if with_difference else NoRouting())


class ConcatAggregationConfig(Config):
    """The cases stand beside the image as they are."""

    kind: Literal["concat"] = "concat"

    def build(self, dim: int, *, with_difference: bool) -> Aggregation:
        return Aggregation(NoRouting(), NoRouting())


AggregationConfig = Annotated[
    FlexiRouteConfig | TransformerAggregationConfig | TrarAggregationConfig | ConcatAggregationConfig,
    Field(discriminator="kind"),
]
