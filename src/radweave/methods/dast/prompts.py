"""The prompt: a sentence with the exemplar, where there is one, and the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from radweave.data.tokenizer import encode
from radweave.nn.prompt import PromptFormat, PromptTemplate
from radweave.nn.text_pretraining import TokenSlot, pad_rows

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
        pieces = PromptTemplate.parse(
            exemplar_prompt, lambda text: encode(tokenizer, text), slots=("exemplar",), bos_id=None
        ).pieces
        place = pieces.index("exemplar")
        self._before, self._after = (
            [token for piece in part for token in piece if isinstance(token, int)]
            for part in (pieces[:place], pieces[place + 1 :])
        )

    def exemplar_ids(self, texts: Sequence[str | None], limit: int) -> TokenSlot:
        """Token ids (B, L) of the reports, cut at ``limit``, in their sentence, and where they are; nothing where there
        is no exemplar.
        """
        return self.exemplar_sentence(
            *pad_rows([[] if text is None else encode(self.tokenizer, text)[:limit] for text in texts])
        )

    def exemplar_sentence(self, ids: torch.Tensor, mask: torch.Tensor) -> TokenSlot:
        """Reports (B, L) with the words around them; a row without any token stays without."""
        there = mask.any(1, keepdim=True)
        before, after = (ids.new_tensor(words).expand(len(ids), -1) for words in (self._before, self._after))
        around = [there.expand(-1, words.shape[1]) for words in (before, after)]
        return torch.cat([before, ids, after], dim=1), torch.cat([around[0], mask, around[1]], dim=1)
