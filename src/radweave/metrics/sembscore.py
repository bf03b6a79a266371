"""SembScore: cosine of the [CLS] states that CheXbert has of a draft and of its reference.

Source: Yu et al., "Evaluating Progress in Automatic Chest X-Ray Radiology Report Generation", Patterns 2023 (there
"CheXbert vector similarity", s_emb); Smit et al., "CheXbert", EMNLP 2020. Texts are cut at 512 tokens, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from radweave.labels.chexbert import read_network
from radweave.metrics.encoders import StateCache, TextEncoder, states_of


class SembScorer:
    """Scores pairs of texts.

    Raises:
        InputError: for a file that is missing, or weights that are not CheXbert's.
    """

    def __init__(self, folder: Path, *, device: torch.device, cache: Path | None = None) -> None:
        network, tokenizer, max_tokens, self.version = read_network(folder, device)
        self._encoder = TextEncoder(network.bert, tokenizer, max_tokens, self.version, device)
        self._cache = StateCache(cache, f"{self.version}-cls{max_tokens}")

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Cosines (M,) of M pairs of (draft, reference); 0 where a state is 0."""
        prepared = [(" ".join(draft.split()), " ".join(reference.split())) for draft, reference in pairs]
        states = states_of([text for pair in prepared for text in pair], self._encoder.first_states, self._cache)
        vectors = {text: state.numpy().astype(np.float64) for text, state in states.items()}
        lengths = {text: float(np.linalg.norm(vector)) for text, vector in vectors.items()}
        scores = np.zeros(len(prepared))
        for number, (draft, reference) in enumerate(prepared):
            if product := lengths[draft] * lengths[reference]:
                scores[number] = float(vectors[draft] @ vectors[reference]) / product
        return scores
