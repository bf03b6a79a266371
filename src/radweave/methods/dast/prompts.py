"""The prompt with and without an exemplar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from radweave.data.tokenizer import encode
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.text_pretraining import TokenSlot, pad_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Prompts:
    """The prompt with and without an exemplar, and the tokens of exemplars and class names."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str,
        exemplar_prompt: str,
        prompt_format: PromptFormat,
        classes: tuple[str, ...],
    ) -> None:
        self.tokenizer = tokenizer
        self.class_names = [encode(tokenizer, f" {name.lower()}") for name in classes]
        self.plain = PromptTemplate.for_tokenizer(prompt, tokenizer, prompt_format, slots=("image",))
        self.with_exemplar = PromptTemplate.for_tokenizer(
            exemplar_prompt + prompt, tokenizer, prompt_format, slots=("exemplar", "image")
        )

    def exemplar_ids(self, texts: Sequence[str | None], limit: int) -> TokenSlot:
        """Token ids (B, L) of the reports, cut at ``limit``, and where they are; nothing where there is no exemplar."""
        return pad_rows([[] if text is None else encode(self.tokenizer, text)[:limit] for text in texts])
