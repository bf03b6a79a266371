"""Disease Information Distillation (DID): the report, as the language model reads it, teaches the image features.

Source: VDGen, Sec. 3.3, Eq. 4-6.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.config import Config
from radweave.nn.contrastive import symmetric_info_nce
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.lora import adapters_off
from radweave.nn.next_token import position_ids


@torch.no_grad()
def mean_hidden_state(
    language_model: CausalLanguageModel, input_ids: Int[Tensor, "batch text"], mask: Bool[Tensor, "batch text"]
) -> Float[Tensor, "batch width"]:
    """The teacher: mean of the language model's last hidden states over the tokens of a text, right-padded.

    The text is read after the begin token, whose own state is left out: large models park unrelated values in it (Xiao
    et al., "attention sinks", ICLR 2024). The end token is left out as well, so that reports and sentences compare.
    The teacher stands still: adapters and dropout are off, and no gradient reaches the language model.
    """
    begin = torch.full_like(input_ids[:, :1], language_model.bos_id)
    ids = torch.cat([begin, input_ids], dim=1)
    present = torch.cat([torch.ones_like(begin, dtype=torch.bool), mask], dim=1)
    was_training = language_model.training
    language_model.eval()
    with adapters_off(language_model):
        states: Tensor = language_model.model.base_model(
            input_ids=ids, attention_mask=present.long(), position_ids=position_ids(present), use_cache=False
        ).last_hidden_state
    language_model.train(was_training)
    weight = (mask & (input_ids != language_model.eos_id))[:, :, None].float()
    return (states[:, 1:].float() * weight).sum(1) / weight.sum(1).clamp(min=1)


class DiseaseDistillation(nn.Module):
    """Symmetric InfoNCE between an image and the language model's reading of its report.

        z_img = h / |h|,   z_text = (W_2 t + b_2) / |W_2 t + b_2|                                        (Eq. 4-5)
        L = (L_v2t + L_t2v) / 2 over S_ij = z_img,i . z_text,j / tau                                        (Eq. 6)

    Notation: ``mean`` is their mean over I^e, ``text`` their z-hat^text. Over the global batch where training is
    distributed. Deviations: none; the paper does not say which states of the language model it takes, see
    ``mean_hidden_state``.
    """

    def __init__(self, dim: int, text_width: int, temperature: float) -> None:
        super().__init__()
        self.text_projection = nn.Linear(text_width, dim)
        self.temperature = temperature

    def image_vectors(self, mean: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        """Eq. 4."""
        return F.normalize(mean.float(), dim=-1)

    def text_vectors(self, text: Float[Tensor, "batch width"]) -> Float[Tensor, "batch dim"]:
        """Eq. 5."""
        return F.normalize(self.text_projection(text.to(self.text_projection.weight)).float(), dim=-1)

    def loss(
        self,
        mean: Float[Tensor, "batch dim"],
        language_model: CausalLanguageModel,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, ""]:
        """Eq. 6 for a batch of images and their reports."""
        text = mean_hidden_state(language_model, input_ids, labels != -100)
        return symmetric_info_nce(self.image_vectors(mean), self.text_vectors(text), self.temperature)


class NoDistillation(nn.Module):
    """No DID; asked for its loss it is 0, and nothing is said of how sentences fit the image."""

    def loss(
        self,
        mean: Float[Tensor, "batch dim"],
        language_model: CausalLanguageModel,
        input_ids: Int[Tensor, "batch text"],
        labels: Int[Tensor, "batch text"],
    ) -> Float[Tensor, ""]:
        return mean.new_zeros(())


class DiseaseDistillationConfig(Config):
    """Eq. 4-6; the paper does not give tau."""

    kind: Literal["report"] = "report"
    temperature: float = Field(default=0.1, gt=0)

    def build(self, dim: int, text_width: int) -> DiseaseDistillation:
        return DiseaseDistillation(dim, text_width, self.temperature)


class NoDistillationConfig(Config):
    """The row w/o DID."""

    kind: Literal["none"] = "none"

    def build(self, dim: int, text_width: int) -> NoDistillation:
        return NoDistillation()


DistillationConfig = Annotated[DiseaseDistillationConfig | NoDistillationConfig, Field(discriminator="kind")]
