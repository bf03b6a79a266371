"""The 18-class CT report classifier from local weights: RoBERTa, its pooler, and one linear layer.

Source: Hamamci et al., CT-RATE / CT-CLIP, arXiv:2403.17834, report labels by a fine-tuned RadBERT-RoBERTa-4m. The
checkpoint's names are "model.*" for RoBERTa and "classifier.*"; a class is present where sigmoid(logit) > 0.5, that is
where the logit is above zero. The order of the classes is that of ``CT18``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn
from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

from radweave.core.foreign_models import read_shape, read_tokenizer
from radweave.core.ontology import CT18
from radweave.core.storage import sha256_file
from radweave.core.study import LabelState
from radweave.labels.labeler import BLANK, Mention
from radweave.labels.trained import (
    MAX_TOKENS,
    check_vocabulary,
    load_strictly,
    read_state,
    require_files,
    run_each,
    weights_file,
)

_PRESENT = Mention(LabelState.POSITIVE)


class RadBertNetwork(nn.Module):
    """RoBERTa with a linear layer on its pooled output."""

    def __init__(self, config: RobertaConfig) -> None:
        super().__init__()
        self.model = RobertaModel(config)
        self.classifier = nn.Linear(config.hidden_size, len(CT18))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Token ids and mask (B, T) to logits (B, 18)."""
        pooled = self.model(input_ids=input_ids, attention_mask=attention_mask).pooler_output
        logits: Tensor = self.classifier(pooled)
        return logits


class RadBertLabeler:
    """Labels CT reports with a local copy of the 18-class RadBERT classifier.

    ``folder`` holds the weights (one .pth or .safetensors file), RoBERTa's config.json and its tokenizer
    (vocab.json with merges.txt, or tokenizer.json). A class that is not present is blank: the classifier does not tell
    denied from not mentioned.

    Raises:
        InputError: for a file that is missing, or weights of another network.
    """

    name = "RadBERT-18"
    classes: tuple[str, ...] = CT18

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        path = weights_file(folder, labeler=self.name)
        require_files(folder, (("config.json",),), labeler=self.name)
        require_files(folder, (("vocab.json", "merges.txt"), ("tokenizer.json",)), labeler=self.name)
        config = read_shape(folder, what=self.name, kind=RobertaConfig)
        self.version = sha256_file(path)[:12]
        self._device = device
        self._tokenizer = read_tokenizer(folder, what=self.name, kind=RobertaTokenizer)
        check_vocabulary(self._tokenizer, config.vocab_size, folder)
        network = RadBertNetwork(config)
        load_strictly(network, read_state(path), path)
        self._network = network.to(device)
        # RoBERTa counts positions from the padding index on: two places are never used.
        self._max_tokens = min(MAX_TOKENS, config.max_position_embeddings - config.pad_token_id - 1)

    def label(self, texts: Sequence[str]) -> list[dict[str, Mention]]:
        """Classes above the threshold; see ``radweave.labels.Labeler``. Texts are cut at 512 tokens, as published."""
        results = run_each(self._network, self._tokenizer, self._max_tokens, texts, self._device)
        return [
            {name: _PRESENT if score > 0 else BLANK for name, score in zip(self.classes, row, strict=True)}
            for row in (logits[0].tolist() for logits in results)
        ]


LABELER = RadBertLabeler
