"""CheXbert from local weights: BERT-base with fourteen heads on the [CLS] state.

Source: Smit et al., "CheXbert", EMNLP 2020. The published checkpoint holds "model_state_dict" with the names
"module.bert.*" and "module.linear_heads.0" to "module.linear_heads.13": thirteen heads of four states (blank, positive,
negative, uncertain) and one of two for No Finding (blank, positive), in the order of ``CHEXPERT14``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertTokenizer

from radweave.core.foreign_models import read_shape, read_tokenizer
from radweave.core.ontology import CHEXPERT14
from radweave.core.storage import sha256_file
from radweave.core.study import LabelState
from radweave.labels.labeler import Mention
from radweave.labels.trained import (
    MAX_TOKENS,
    check_vocabulary,
    load_strictly,
    read_state,
    require_files,
    run_each,
    weights_file,
)

NAME = "CheXbert"
STATES = (LabelState.BLANK, LabelState.POSITIVE, LabelState.NEGATIVE, LabelState.UNCERTAIN)
HEAD_SIZES = (4,) * 13 + (2,)


class CheXbertNetwork(nn.Module):
    """BERT and one linear head per class; dropout is left out, as it does nothing at inference."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)
        self.linear_heads = nn.ModuleList(nn.Linear(config.hidden_size, size) for size in HEAD_SIZES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """Token ids and mask (B, T) to fourteen logits (B, 4), the last (B, 2)."""
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0]
        return [head(hidden) for head in self.linear_heads]


def read_network(folder: Path, device: torch.device | str = "cpu") -> tuple[CheXbertNetwork, Any, int, str]:
    """The network of a folder, its tokenizer, its longest text in tokens, and the hash of its weights.

    Raises:
        InputError: for a file that is missing, or weights that are not CheXbert's.
    """
    path = weights_file(folder, labeler=NAME)
    require_files(folder, (("vocab.txt",), ("tokenizer.json",)), labeler=NAME)
    has_config = (folder / "config.json").is_file()
    config = read_shape(folder, what=NAME, kind=BertConfig) if has_config else BertConfig()
    tokenizer = read_tokenizer(folder, what=NAME, kind=BertTokenizer, do_lower_case=True)
    check_vocabulary(tokenizer, config.vocab_size, folder)
    network = CheXbertNetwork(config)
    load_strictly(network, read_state(path), path)
    max_tokens = min(MAX_TOKENS, int(config.max_position_embeddings))
    return network.eval().to(device), tokenizer, max_tokens, sha256_file(path)[:12]


class CheXbertLabeler:
    """Labels reports with a local copy of CheXbert.

    ``folder`` holds the weights (one .pth or .safetensors file), the vocabulary of bert-base-uncased (vocab.txt or
    tokenizer.json) and, for another size than BERT-base, its config.json.

    Raises:
        InputError: for a file that is missing, or weights that are not CheXbert's.
    """

    name = NAME
    classes: tuple[str, ...] = CHEXPERT14

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        self._network, self._tokenizer, self._max_tokens, self.version = read_network(folder, device)
        self._device = device

    def label(self, texts: Sequence[str]) -> list[dict[str, Mention]]:
        """Most likely state per class; see ``radweave.labels.Labeler``. Texts are cut at 512 tokens, as published."""
        results = []
        for heads in run_each(self._network, self._tokenizer, self._max_tokens, texts, self._device):
            chosen = [int(torch.argmax(logits[0])) for logits in heads]
            results.append(
                {name: Mention(STATES[index]) for name, index in zip(self.classes, chosen, strict=True)},
            )
        return results


LABELER = CheXbertLabeler
