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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import GPT2Tokenizer, RobertaTokenizer

from radweave.core.errors import InputError
from radweave.core.foreign_models import read_shape
from radweave.metrics.encoders import PackedStates, StateCache, TextEncoder, TokenIds, count_layers, read_encoder

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
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
_COUNTED_AT_A_TIME = 8192
"""References whose words are counted at a time."""
_BLANKS = re.compile(" +")


@dataclass(frozen=True, slots=True)
class BertScores:
    """F of M pairs, (M,) each; ``rescaled`` is None without a baseline file."""

    raw: Floats
    rescaled: Floats | None


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
        layers = count_layers(shape, folder)
        # Of other shapes than the published ones, the last layer but one.
        layer = _TUNED_LAYERS.get((str(shape.model_type), layers), max(layers - 1, 1))
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
        known = {text: _prepared(text) for pair in pairs for text in pair}
        prepared = [(known[draft], known[reference]) for draft, reference in pairs]
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
        size = len(self._encoder.tokenizer)
        frequencies = np.zeros(size, dtype=np.int64)
        for first in range(0, len(references), _COUNTED_AT_A_TIME):
            token_ids = [self._token_ids[text] for text in references[first : first + _COUNTED_AT_A_TIME]]
            owner = np.repeat(np.arange(len(token_ids)), [len(ids) for ids in token_ids])
            keys = np.sort(owner * size + np.concatenate(token_ids))
            held = keys[np.flatnonzero(np.diff(keys, prepend=-1))]
            frequencies += np.bincount(held % size, minlength=size)
        return torch.log((len(references) + 1) / (torch.from_numpy(frequencies).double() + 1)).float()

    def _blocks(self, pairs: Pairs) -> Iterator[list[tuple[str, str]]]:
        """Pairs of similar length, as many as their states fit into memory."""
        drafts, references = (np.array([len(self._token_ids[pair[side]]) for pair in pairs]) for side in (0, 1))
        dim = int(self._encoder.model.config.hidden_size)  # type: ignore[union-attr, arg-type]
        most = max(_STATE_BYTES // (4 * dim), 1)
        block: list[tuple[str, str]] = []
        tokens = 0
        for number in np.lexsort((drafts, references)).tolist():
            own = int(drafts[number] + references[number])
            if block and tokens + own > most:
                yield block
                block, tokens = [], 0
            block.append(pairs[number])
            tokens += own
        if block:
            yield block

    def _match(self, block: Pairs) -> None:
        """Score pairs whose states fit into memory."""
        texts = list(dict.fromkeys(text for pair in block for text in pair))
        number_of = {text: number for number, text in enumerate(texts)}
        numbers = np.array([(number_of[draft], number_of[reference]) for draft, reference in block])
        lengths = np.array([len(self._token_ids[text]) for text in texts])
        states = self._states(texts)
        if not len(states.rows):  # no text has a token
            self._scores |= dict.fromkeys(block, (0.0, 0.0))
            return
        in_rows = np.argsort(states.first + lengths, kind="stable")
        ids = np.concatenate([self._token_ids[texts[number]] for number in in_rows.tolist()])
        weights = self._weights[:, torch.from_numpy(ids)]
        first = 0
        while first < len(block):
            widest, tallest, end = 0, 0, first
            while end < len(block):
                draft, reference = lengths[numbers[end]].tolist()
                wider, taller = max(widest, draft), max(tallest, reference)
                if end > first and (end + 1 - first) * wider * taller > _MATCHED_CELLS:
                    break
                widest, tallest, end = wider, taller, end + 1
            drafts, references = (_Side.of(own, states, lengths, weights) for own in numbers[first:end].T)
            plain, weighted = _matched(drafts, references)
            self._scores |= zip(block[first:end], zip(plain, weighted, strict=True), strict=True)
            first = end

    def _states(self, texts: Sequence[str]) -> PackedStates:
        """The directions of the tokens of different texts: from the cache, else computed and added to it."""
        cached = self._cache.read(texts)
        missing = [text for text in texts if text not in cached]
        made = self._encoder.directions([self._token_ids[text] for text in missing])
        if self._cache.is_kept:
            places = zip(missing, made.first.tolist(), strict=True)
            self._cache.write({text: made.rows[own : own + len(self._token_ids[text])] for text, own in places})
        if not cached:
            return made
        first, end = dict(zip(missing, made.first.tolist(), strict=True)), len(made.rows)
        for text, state in cached.items():
            first[text], end = end, end + len(state)
        rows = torch.cat([made.rows, *cached.values()])
        return PackedStates(rows, np.array([first[text] for text in texts], dtype=np.int64))


@dataclass(frozen=True, slots=True)
class _Side:
    """The drafts or the references of M pairs.

    Attributes:
        states: (M, tokens, dim); a shorter text goes on with its last token, which changes no best match.
        weights: (2, M, tokens) of each token, without and with IDF; 0 beyond the text.
    """

    states: Tensor
    weights: Tensor

    @classmethod
    def of(cls, numbers: Ints, states: PackedStates, lengths: Ints, weights: Tensor) -> _Side:
        """The texts of these numbers; ``weights`` (2, T) are those of the rows of the states."""
        own = lengths[numbers][:, None]
        steps = np.arange(int(own.max(initial=1)))
        rows = states.first[numbers][:, None] + np.minimum(steps, np.maximum(own - 1, 0))
        places = torch.from_numpy(np.minimum(rows, len(states.rows) - 1))
        outside = torch.from_numpy(steps >= own)
        gathered = states.rows.index_select(0, places.flatten()).view(*places.shape, -1)
        return cls(gathered, weights[:, places].masked_fill_(outside, 0.0))

    def mean(self, best: Tensor) -> Tensor:
        """Weighted means (2, M) of the best matches (M, tokens); NaN where all weights are 0."""
        return (self.weights * best).sum(dim=2) / self.weights.sum(dim=2)


@torch.inference_mode()
def _matched(drafts: _Side, references: _Side) -> tuple[list[float], list[float]]:
    """F of M pairs, without and with IDF."""
    cosines = torch.bmm(drafts.states, references.states.transpose(1, 2))
    precision, recall = drafts.mean(cosines.amax(dim=2)), references.mean(cosines.amax(dim=1))
    scores = 2.0 * precision * recall / (precision + recall)
    plain, weighted = torch.where(scores.isnan(), 0.0, scores).tolist()
    return plain, weighted


def _prepared(text: str) -> str:
    return (_BLANKS.sub(" ", text) if "  " in text else text).strip()


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
