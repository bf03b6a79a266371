"""Images and reports that belong together lie close: the contrastive term of stage 1 (the paper's Eq. 3)."""

from __future__ import annotations

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config
from radweave.nn.contrastive import symmetric_info_nce


class Alignment(nn.Module):
    """InfoNCE between the projected mean patch and the text feature, by cosine.

        z_i = P mean(V_i),      loss = symmetric InfoNCE of (z_i, text_i) over the batch, temperature tau

    Deviations: the paper names no projection; its encoder and text encoder differ in width, so there is one, on the
    vision side, which is the side that trains. The temperature is not given either.
    """

    def __init__(self, dim: int, text_dim: int, temperature: float) -> None:
        super().__init__()
        self.projection = nn.Linear(dim, text_dim)
        self.temperature = temperature

    def loss(self, visual: Float[Tensor, "batch dim"], text: Float[Tensor, "batch text_dim"]) -> Float[Tensor, ""]:
        """Row i of ``visual`` and row i of ``text`` belong together."""
        return symmetric_info_nce(self.projection(visual), text, self.temperature)


class AlignmentConfig(Config):
    """The contrastive term; MambaXray-VL and CLIP start from the same temperature."""

    temperature: float = Field(default=0.07, gt=0)

    def build(self, dim: int, text_dim: int) -> Alignment:
        return Alignment(dim, text_dim, self.temperature)
