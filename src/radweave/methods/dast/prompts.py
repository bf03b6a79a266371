"""The prompt: a sentence with the exemplar, where there is one, and the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from radweave.data.tokenizer import encode
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.text_pretraining import Around, TokenSlot, pad_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Prompts:
    """One template with the slots ``exemplar`` and ``image``, and the tokens of exemplars and class names.

    The words around an exemplar come and go with it, study by study: one that may recall nothing is not told of a
    similar report.
    """

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
        self.template = PromptTemplate.for_tokenizer(
            f"{{exemplar}}{prompt}", tokenizer, prompt_format, slots=("exemplar", "image")
        )
        self.exemplar_sentence = Around.parse(exemplar_prompt, tokenizer, "exemplar")

    def exemplar_ids(self, texts: Sequence[str | None], limit: int) -> TokenSlot:
        """Token ids (B, L) of the reports, cut at ``limit``, in their sentence, and where they are; nothing where there
        is no exemplar.
        """
        return self.exemplar_sentence(
            *pad_rows([[] if text is None else encode(self.tokenizer, text)[:limit] for text in texts])
        )
