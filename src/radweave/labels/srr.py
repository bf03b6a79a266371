"""SRR-BERT: the findings of sentences by a network from a local folder, as structured reports name them.

Source: Delbrouck et al., "Automated Structured Radiology Report Generation", ACL 2025: BERT with one output per class,
present where the logit is above zero; a report has the classes of its sentences. The classes are those of the
``*mapping.json`` in the folder (class -> output), as the RadEval package 2.2.1 publishes it.

Deviations: sentences are split by our rules (``labels.text``), where RadEval uses NLTK's trained splitter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from radweave.core.errors import InputError
from radweave.core.foreign_models import read_model, read_shape, read_tokenizer
from radweave.core.json_files import read_json_object
from radweave.labels.text import split_sentences
from radweave.labels.trained import MAX_TOKENS, check_vocabulary, run_each

NAME = "SRR-BERT"
# A number that counts the items of a list, alone or behind a word.
_NUMBER = re.compile(r"(?:(?<=^)|(?<=[\s.!?]))\d+\.(?!\d)\s*")


class SrrBert:
    """Reads the classes of reports.

    Raises:
        InputError: for a folder that cannot be loaded, or a mapping that does not fit the network.
    """

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        shape = read_shape(folder, what=NAME, kind=BertConfig)
        self.classes = _classes(folder, int(shape.num_labels))
        self._network, _ = read_model(folder, BertForSequenceClassification, what=NAME, shape=shape)
        self._tokenizer = read_tokenizer(folder, what=NAME, kind=BertTokenizer)
        check_vocabulary(self._tokenizer, int(shape.vocab_size), folder)
        self._network.to(device)
        self._device = device
        self._max_tokens = min(MAX_TOKENS, int(shape.max_position_embeddings))
        self._read: dict[str, NDArray[np.bool_]] = {}

    def states(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Presence (N, K) of the classes in N reports; a report without a sentence has none."""
        parts = {text: split_sentences(_NUMBER.sub("", text)) for text in texts}
        new = list(dict.fromkeys(part for own in parts.values() for part in own if part not in self._read))
        logits = run_each(_Logits(self._network), self._tokenizer, self._max_tokens, new, self._device)
        self._read |= {part: (row[0] > 0).cpu().numpy() for part, row in zip(new, logits, strict=True)}
        nothing = np.zeros(len(self.classes), dtype=bool)
        return np.array(
            [np.logical_or.reduce([nothing, *(self._read[part] for part in parts[text])]) for text in texts]
        )


class _Logits(torch.nn.Module):
    """The logits of a classifier of transformers."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(input_ids=input_ids, attention_mask=attention_mask).logits
        return logits


def _classes(folder: Path, outputs: int) -> tuple[str, ...]:
    """The classes in the order of the outputs, from the one ``*mapping.json`` of a folder."""
    files = sorted(folder.glob("*mapping.json"))
    if len(files) != 1:
        got = ", ".join(file.name for file in files) or "none"
        raise InputError(f"{NAME} needs the mapping of its classes", file=folder, got=got, expected="one *mapping.json")
    mapping = read_json_object(files[0])
    if sorted(map(str, mapping.values())) != sorted(map(str, range(outputs))):
        raise InputError("the mapping does not fit the network", file=files[0], got=len(mapping), expected=outputs)
    return tuple(sorted(mapping, key=lambda name: int(mapping[name])))
