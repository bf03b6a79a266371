"""A language model as writer: its prompt for a study, and its reports as further candidates for a draft.

The prompt has the image's tokens and the names of the findings that the stack asserts. In training the names are those
of the reference report. Some are dropped and some wrong ones added, at about the error rate of the stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from radweave.nn.language_model import CausalLanguageModel
from radweave.nn.prompt import PromptFormat, PromptTemplate, Slot
from radweave.nn.text_pretraining import DiagnosisText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HINTS = {"missed": 0.3, "wrong": 0.05}
"""Shares of findings dropped from and added to the prompt in training."""


class Prompts:
    """The prompt with the slots ``image`` and ``findings``."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt: str, prompt_format: PromptFormat, findings: DiagnosisText
    ) -> None:
        self.findings = findings
        self.template = PromptTemplate.for_tokenizer(prompt, tokenizer, prompt_format, slots=("image", "findings"))

    def slots(self, writer: CausalLanguageModel, image: Slot, findings: Tensor) -> dict[str, Slot]:
        """Slots of the prompt of each study; ``findings`` (B, C) marks the named ones."""
        ids, mask = self.findings.tokens(findings)
        device = image[0].device
        return {"image": image, "findings": (writer.embed(ids.to(device)), mask.to(device))}
