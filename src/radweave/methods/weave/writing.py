"""A language model as writer: its prompt for a study, and its reports as further candidates for a draft.

The prompt has the image's tokens, the names of the findings that the stack asserts, and the report of the nearest
training study. In training the names are those of the reference report. Some are dropped and some wrong ones added, at
about the error rate of the stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from radweave.data.tokenizer import encode
from radweave.drafting.choice import prepared
from radweave.drafting.smoothers import Floats, Mask
from radweave.metrics.pairwise import PairwiseWording, WordingWeights
from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.text_pretraining import Around, DiagnosisText, TokenSlot, pad_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HINTS = {"missed": 0.3, "wrong": 0.05}
"""Shares of findings dropped from and added to the prompt in training."""


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
        """Slots of the prompt of each study; ``findings`` (B, C) marks the named ones."""
        embed, device = writer.embed, image[0].device
        texts = [[] if text is None else encode(self.tokenizer, text)[: self.max_tokens] for text in recalled]

        def embedded(slot: TokenSlot) -> Slot:
            return embed(slot[0].to(device)), slot[1].to(device)

        return {
            "image": image,
            "findings": embedded(self.findings.tokens(findings)),
            "recalled": embedded(self.around(*pad_rows(texts))),
        }


# Wording: the mixture of the weights over training reports that sources give.


NAMES = ("kernels", "recall")
"""The sources that weight training reports by their wording."""
STEPS = 10
"""Number of steps of the grid of shares, from one source to the other."""


class Wording(nn.Module):
    """Shares of the sources where both are there, fitted to how training reports are worded; equal before."""

    shares: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shares", torch.full((len(NAMES),), 0.5, dtype=torch.float64))

    def mixed(self, weights: Mapping[str, Floats], barred: Mask) -> Floats:
        """Mixture of the sources' weights (J,); equal weights if no source has any."""
        shares = dict(zip(NAMES, self.shares.tolist(), strict=True))
        positive = {name: shares[name] for name in weights if shares[name] > 0}
        if not positive:
            allowed = np.where(barred, 0.0, 1.0)
            return np.asarray(allowed / max(float(allowed.sum()), 1.0))
        total = sum(positive.values())
        return np.asarray(np.sum([weights[name] * (share / total) for name, share in positive.items()], axis=0))

    def fit(self, weights: Mapping[str, Floats], texts: Sequence[str], patients: NDArray[Any]) -> None:
        """Choose the shares with the highest mean utility on J training reports, out of fold.

        Args:
            weights: by source, the weight (J, J) of each report for each study; 0 for reports of the same patient.
            texts: the reports.
            patients: the patient (J,) of each report.
        """
        if set(weights) != set(NAMES):
            return
        words = prepared(texts)
        worth = PairwiseWording(words, words).blocks(WordingWeights(bleu=0.0))
        utilities = np.concatenate([block for _, block in worth])
        own = patients[:, None] == patients[None]
        by_kernels, by_recall = (weights[name].astype(np.float32) @ utilities.T for name in NAMES)
        best = -np.inf
        for share in np.linspace(0, 1, STEPS + 1).tolist():
            chosen = np.where(own, -np.inf, share * by_kernels + (1 - share) * by_recall).argmax(axis=1)
            reached = float(utilities[chosen, np.arange(len(chosen))].mean())
            if reached > best:
                best = reached
                self.shares.copy_(torch.tensor([share, 1 - share], dtype=torch.float64))
