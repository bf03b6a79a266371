"""Words from a language model: what it is told of a study, and reports that join those a draft is chosen from.

Its prompt has the image's tokens, the names of the findings that the stack asserts, and the report of the nearest
training study. While it learns, the names are those of the reference report, some missed and some wrong, about as
unreliable as the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from torch import nn

from radweave.base.config import Config
from radweave.data.tokenizer import encode
from radweave.nn.finding_words import DiagnosisText
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig, PretrainedLanguageModelConfig
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.text_pretraining import Around, TokenSlot, pad_rows

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

HINTS = {"missed": 0.3, "wrong": 0.05}
"""How unreliable the findings are that the model learns with."""


class NoLanguageModel(nn.Module):
    """No words but those that a radiologist wrote."""

    width = 1


class NoLanguageModelConfig(Config):
    """Write nothing: drafts are chosen among sentences of training reports alone."""

    kind: Literal["none"] = "none"


WriterSetting = Annotated[
    NoLanguageModelConfig | LlamaConfig | PretrainedLanguageModelConfig, Field(discriminator="kind")
]
WriterPart = CausalLanguageModel | NoLanguageModel


class Prompts:
    """The prompt with the slots ``image``, ``findings`` and ``recalled``."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str,
        recalled_prompt: str,
        prompt_format: PromptFormat,
        findings: DiagnosisText,
        max_tokens: int,
    ) -> None:
        self.tokenizer, self.findings, self.max_tokens = tokenizer, findings, max_tokens
        slots = ("image", "findings", "recalled")
        self.template = PromptTemplate.for_tokenizer(f"{{recalled}}{prompt}", tokenizer, prompt_format, slots=slots)
        self.around = Around.parse(recalled_prompt, tokenizer, "recalled")

    def slots(
        self, writer: CausalLanguageModel, image: Slot, findings: Tensor, recalled: Sequence[str | None]
    ) -> dict[str, Slot]:
        """What stands in the prompt of each study; ``findings`` (B, C) are those that are named."""
        embed, device = writer.embed, image[0].device
        texts = [[] if text is None else encode(self.tokenizer, text)[: self.max_tokens] for text in recalled]

        def embedded(slot: TokenSlot) -> Slot:
            return embed(slot[0].to(device)), slot[1].to(device)

        return {
            "image": image,
            "findings": embedded(self.findings.tokens(findings)),
            "recalled": embedded(self.around(*pad_rows(texts))),
        }
