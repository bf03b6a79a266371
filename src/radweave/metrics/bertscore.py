"""BERTScore with a user's local encoder: greedy matching of token states by cosine.

Source: Zhang et al., "BERTScore", ICLR 2020, Eq. 1 to 5, as the bert-score package 0.3.13 computes it. With x the
reference's tokens, y the draft's, and w a weight per token,

    P = sum_j w_j max_i cos(x_i, y_j) / sum_j w_j,   R likewise over the reference,   F = 2 P R / (P + R)

w is 1, and 0 for the two tokens around a text; with IDF it is log((N + 1) / (n + 1)) for a token in n of the N
references of the evaluated set. A rescaled score is (F - b) / (1 - b) with the baseline b of the layer.

Kept from the package: F is 0 where a text has no token; of several references the best counts. Runs of blanks become
one, as in CXR-Report-Metric, which ReXrank and RadCliQ use. RoBERTa's tokenizer gets a blank before the first word, as
the package asks for; it has no effect there with transformers 5, so that the package itself scores otherwise then.

Deviations: the package counts a padded place as cosine 0, so that a negative best match depends on the batch; here
padding never matches.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Tokenizer, RobertaTokenizer

from radweave.core.errors import InputError
from radweave.core.foreign_models import read_shape
from radweave.metrics.encoders import StateCache, TextEncoder, TokenIds, count_layers, read_encoder, states_of

Floats = NDArray[np.float64]
Pairs = Sequence[tuple[str, str]]

WHAT = "the text encoder of BERTScore"
# The layer that the package's authors chose by correlation with human judgement: (model type, layers) -> layer.
_TUNED_LAYERS: Mapping[tuple[str, int], int] = {
    ("roberta", 6): 5,
    ("distilbert", 6): 5,
    ("roberta", 12): 10,
    ("bert", 12): 9,
    ("roberta", 24): 17,
    ("bert", 24): 18,
}
_STATE_BYTES = 256 << 20
"""Memory for the states of the texts that are matched at a time."""
_MATCHED_CELLS = 1 << 22
"""Cells of the similarity matrices that are computed at a time."""
_BLANKS = re.compile(" +")


@dataclass(frozen=True, slots=True)
class BertScores:
    """F of M pairs, (M,) each; ``rescaled`` is None without a baseline file."""

    raw: Floats
    rescaled: Floats | None


def tuned_layer(model_type: str, layers: int) -> int:
    """The layer whose states are compared; of other shapes than the published ones, the last but one."""
    return _TUNED_LAYERS.get((model_type, layers), max(layers - 1, 1))


class BertScorer:
    """Scores pairs of texts.

    Args:
        folder: encoder and tokenizer; for the rescaled score one baseline file ``*.tsv`` of the bert-score package.
        references: of the evaluated set, for IDF.
        cache: folder of states that are kept, if any.

    Raises:
        InputError: for a folder or baseline that cannot be used.
    """

    def __init__(
        self, folder: Path, references: Sequence[str], *, device: torch.device, cache: Path | None = None
    ) -> None:
        shape = read_shape(folder, what=WHAT)
        layer = tuned_layer(str(shape.model_type), count_layers(shape, folder))
        self._encoder: TextEncoder = read_encoder(folder, what=WHAT, device=device, layers=layer)
        self._begins_with_blank = isinstance(self._encoder.tokenizer, (RobertaTokenizer, GPT2Tokenizer))
        self._baseline = _baseline(folder, layer)
        self.version = f"{self._encoder.version}, layer {layer}" + ("" if self._baseline is None else ", rescaled")
        self._cache = StateCache(cache, f"{self._encoder.version}-layer{layer}")
        self._token_ids: dict[str, TokenIds] = {}
        self._scores: dict[tuple[str, str], tuple[float, float]] = {}
        self._weights = torch.stack([self._ones(), self._idf([_prepared(text) for text in references])])

    def score(self, pairs: Pairs, *, idf: bool) -> BertScores:
        """F of M pairs of (draft, reference)."""
        prepared = [(_prepared(draft), _prepared(reference)) for draft, reference in pairs]
        missing = [pair for pair in dict.fromkeys(prepared) if pair not in self._scores]
        self._tokenize([text for pair in missing for text in pair])
        for block in self._blocks(missing):
            self._match(block)
        raw = np.array([self._scores[pair][idf] for pair in prepared], dtype=np.float64)
        return BertScores(raw, None if self._baseline is None else (raw - self._baseline) / (1.0 - self._baseline))

    def _tokenize(self, texts: Sequence[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._token_ids]
        blank = " " if self._begins_with_blank else ""
        token_ids = self._encoder.token_ids([blank + text if text else text for text in new])
        self._token_ids |= dict(zip(new, token_ids, strict=True))

    def _ones(self) -> Tensor:
        """A weight of 1 for each word of the vocabulary, 0 for the tokens around a text."""
        tokenizer = self._encoder.tokenizer
        weights = torch.ones(len(tokenizer))
        for special in (tokenizer.cls_token_id, tokenizer.sep_token_id):
            if special is not None:
                weights[special] = 0.0
        return weights

    def _idf(self, references: Sequence[str]) -> Tensor:
        """The IDF of each word of the vocabulary."""
        self._tokenize(references)
        counts: Counter[int] = Counter()
        for text in references:
            counts.update(set(self._token_ids[text].tolist()))
        frequencies = torch.zeros(len(self._encoder.tokenizer), dtype=torch.float64)
        frequencies[list(counts)] = torch.tensor(list(counts.values()), dtype=torch.float64)
        return torch.log((len(references) + 1) / (frequencies + 1)).float()

    def _blocks(self, pairs: Pairs) -> Iterator[list[tuple[str, str]]]:
        """Pairs of similar length, as many as their states fit into memory."""
        lengths = {pair: (len(self._token_ids[pair[1]]), len(self._token_ids[pair[0]])) for pair in pairs}
        dim = int(self._encoder.model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        most = max(_STATE_BYTES // (4 * dim), 1)
        block: list[tuple[str, str]] = []
        tokens = 0
        for pair in sorted(pairs, key=lambda pair: lengths[pair]):
            if block and tokens + sum(lengths[pair]) > most:
                yield block
                block, tokens = [], 0
            block.append(pair)
            tokens += sum(lengths[pair])
        if block:
            yield block

    def _match(self, block: Pairs) -> None:
        states = states_of([text for pair in block for text in pair], self._normalised, self._cache)
        first = 0
        while first < len(block):
            widest, tallest, end = 0, 0, first
            while end < len(block):
                draft, reference = (len(self._token_ids[text]) for text in block[end])
                wider, taller = max(widest, draft), max(tallest, reference)
                if end > first and (end + 1 - first) * wider * taller > _MATCHED_CELLS:
                    break
                widest, tallest, end = wider, taller, end + 1
            chunk = block[first:end]
            scores = self._matched(chunk, states)
            self._scores |= {pair: (plain, weighted) for pair, (plain, weighted) in zip(chunk, scores, strict=True)}
            first = end

    def _normalised(self, texts: list[str]) -> list[Tensor]:
        return self._encoder.directions([self._token_ids[text] for text in texts])

    @torch.inference_mode()
    def _matched(self, chunk: Pairs, states: Mapping[str, Tensor]) -> list[tuple[float, float]]:
        """F without and with IDF of pairs that are padded together."""
        drafts, references = ([states[text] for text in side] for side in zip(*chunk, strict=True))
        lengths = [torch.tensor([len(self._token_ids[text]) for text in side]) for side in zip(*chunk, strict=True)]
        cosines = torch.bmm(_padded(drafts), _padded(references).transpose(1, 2))
        for axis in (1, 2):
            outside = torch.arange(cosines.shape[axis])[None] >= lengths[axis - 1][:, None]
            cosines.masked_fill_(outside[:, :, None] if axis == 1 else outside[:, None], -torch.inf)
        matches = cosines.amax(dim=2), cosines.amax(dim=1)
        precision, recall = (
            self._mean(best, [self._token_ids[text] for text in side])
            for best, side in zip(matches, zip(*chunk, strict=True), strict=True)
        )
        scores = 2.0 * precision * recall / (precision + recall)
        scores = torch.where(scores.isnan(), 0.0, scores)
        return [(float(plain), float(weighted)) for plain, weighted in scores.T.tolist()]

    def _mean(self, best: Tensor, token_ids: Sequence[TokenIds]) -> Tensor:
        """Weighted means (2, M) of the best matches (M, tokens), without and with IDF; NaN where all weights are 0."""
        ids = torch.from_numpy(np.concatenate(token_ids))
        lengths = torch.tensor([len(own) for own in token_ids])
        weights = best.new_zeros((*best.shape, 2))
        weights[torch.arange(best.shape[1])[None] < lengths[:, None]] = self._weights[:, ids].T
        best = torch.where(best.isinf(), 0.0, best)
        return ((weights * best[:, :, None]).sum(dim=1) / weights.sum(dim=1)).T


def _prepared(text: str) -> str:
    return (_BLANKS.sub(" ", text) if "  " in text else text).strip()


def _padded(states: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(states), batch_first=True)


def _baseline(folder: Path, layer: int) -> float | None:
    """The baseline of F at a layer, from the one ``*.tsv`` of a folder; None without one."""
    files = sorted(folder.glob("*.tsv"))
    if not files:
        return None
    if len(files) > 1:
        raise InputError("several baselines", file=folder, got=", ".join(file.name for file in files), expected="one")
    try:
        with files[0].open(encoding="utf-8", newline="") as file:
            rows = {int(row["LAYER"]): float(row["F"]) for row in csv.DictReader(file)}
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError, csv.Error):
        raise InputError("not a baseline of bert-score", file=files[0], expected="columns LAYER, P, R, F") from None
    if layer not in rows or not rows[layer] < 1.0:
        raise InputError("has no baseline of the layer", file=files[0], field="LAYER", got=sorted(rows), expected=layer)
    return rows[layer]
