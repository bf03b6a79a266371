"""Disease Information Distillation (DID): the report, as the language model reads it, teaches the image features.

Source: VDGen, Sec. 3.3, Eq. 4-6.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from radweave.base.config import Config
from radweave.methods.vdgen.evidence import NoSentences, SentenceMemoryConfig, Sentences, mean_hidden_state
from radweave.nn.contrastive import symmetric_info_nce
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.sentences import SentenceSplitter


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

    def sentences(self, splitter: SentenceSplitter, config: SentenceMemoryConfig) -> Sentences:
        """What is said of sentences in this space."""
        return Sentences(self, splitter, config)


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

    def sentences(self, splitter: SentenceSplitter, config: SentenceMemoryConfig) -> NoSentences:
        return NoSentences()


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
