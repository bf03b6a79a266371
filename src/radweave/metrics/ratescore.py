"""RaTEScore: agreement of the entities of two reports, by kind and by the similarity of their names.

Source: Zhao et al., "RaTEScore: A Metric for Radiology Report Generation", EMNLP 2024, as the RaTEScore package 0.6.0
computes it with its weights "long". A tagger finds entities of five kinds, sentence by sentence; an encoder gives each
a state. With g an entity of one report, b(g) the entity of the other with the largest cosine c(g), and kinds k,

    S = sum_g w(k_g, k_b(g)) c(g) n(g) / sum_g w(k_g, k_b(g)),   n = 0.87 where one is denied and the other is not, or 1

and RaTEScore is the harmonic mean of S in both directions; 0.5 where a report has no entity.

Kept from the package: how labels of tokens become entities, also where they break the scheme of B and I.

Deviations: of matches with the same cosine, as of one name under two kinds, the first counts; the package leaves open
which one does. Sentences are split by the rules below, equal to those of medspaCy 1.3.1 on the package's examples and
on 86 % of 626 reports and sections of IU X-Ray and CT-RATE; a split elsewhere can change what the tagger sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radweave.core.errors import InputError
from radweave.core.foreign_models import read_model, read_shape, read_tokenizer
from radweave.labels.trained import check_vocabulary
from radweave.metrics.encoders import (
    StateCache,
    equal_length_batches,
    position_limit,
    read_encoder,
    states_of,
    weights_hash,
)

KINDS: Final = ("ABNORMALITY", "NON-ABNORMALITY", "DISEASE", "NON-DISEASE", "ANATOMY")
WEIGHTS: Final = np.array([
    (0.4276119164393705, 0.5431049700217344, 0.0034478181112993847, 0.27005425386213877, 0.6240929990607657),
    (0.16546764653692908, 0.0009357166071730684, 0.719397354576018, 0.0927333564267591, 0.018670610691852826),
    (0.8396510075734789, 0.9820689020512646, 0.8460555030578727, 0.3789136708096537, 0.9950209388542061),
    (0.7759420231214385, 0.03860183811876373, 0.10073046076318157, 0.34065681486566446, 0.1839139293714062),
    (0.7487824274337533, 0.02097055139911715, 0.4592143222158069, 0.00013736314126696204, 0.2856134859160784),
])  # fmt: skip
"""Weight of an entity by its kind (row) and that of its match (column), in the order of ``KINDS``."""
_DENIED_WEIGHT: Final = 0.8716553966489615
_MAX_TOKENS, _MAX_ENTITY_TOKENS = 512, 30
_SHORTEST_SENTENCE = 3
_NO_ENTITY: Final = 0.5
_SAME: Final = 1e-6
"""Cosines that differ by less are the same."""


# After a full stop or question mark that ends a word; after one that stands alone before a capital; after one with a
# closing quotation mark or bracket, and after "e.g.", before a capital or a number; at a new line that begins with
# these. Not after two capitals, which medspaCy reads as an abbreviation.
_SENTENCE_END = re.compile(
    r"(?<=[^\s.][.?])(?<!\b[a-z]\.[a-z]\.)(?<!\b[A-Z]{2}\.)\s+(?=[\w(\"'])"
    r"|(?:(?<=\b[a-z]\.[a-z]\.)|(?<=[.?][\"')]))\s+(?=[A-Z0-9])"
    r"|(?<=\s[.?])\s+(?=[A-Z])"
    r"|\n\s*(?=[A-Z0-9])"
)
_NUMBERED = re.compile(r"\n\s*\d{1,2}\.\s+")


def sentences(text: str) -> list[str]:
    """The sentences of a report that have three characters or more."""
    # The number of an item within a text stays with it.
    numbered = _NUMBERED.sub(lambda match: match.group().rstrip() + "\0", text)
    parts = [part.replace("\0", " ").strip() for part in _SENTENCE_END.split(numbered)]
    return [part for part in parts if len(part) >= _SHORTEST_SENTENCE]


@dataclass(frozen=True, slots=True)
class Entity:
    text: str
    kind: int


def entity_spans(labels: Sequence[str], special: Sequence[bool]) -> list[tuple[int, int, str]]:
    """Entities (first token, last token, kind) of a sentence from the labels of its tokens.

    As the package reads them: the label after a token decides where an entity ends, an I without a B begins none, and
    an entity that runs to the end is lost if another ended before it without a gap.

    Args:
        labels: of each token, "B-KIND", "I-KIND" or "O", those around the text included.
        special: True for the tokens around the text.
    """
    spans: list[tuple[int, int, str]] = []
    start: int | None = None
    ended, kind = False, ""
    for index, (label, following) in enumerate(pairwise(labels)):
        if special[index] or label == "O":
            continue
        begins = label.startswith("B-")
        if following.startswith("I-"):
            if begins:
                start, kind = index, label[2:]
            continue
        if begins:
            spans.append((index, index, label[2:]))
        elif start is not None:
            spans.append((start, index, kind))
        if following.startswith("B-"):
            start, ended, kind = index, True, label[2:]
        else:
            start, ended, kind = None, False, ""
    if start is not None and not ended:
        spans.append((start, len(labels) - 2, kind))
    return spans


class Tagger:
    """Finds the entities of sentences.

    Raises:
        InputError: for a folder that cannot be loaded, or a tagger of other kinds.
    """

    def __init__(self, folder: Path, *, device: torch.device, cache: Path | None = None) -> None:
        from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

        what = "RaTE-NER"
        shape = read_shape(folder, what=what)
        kind = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(type(shape), None)
        self._labels = [str(shape.id2label[index]) for index in range(len(shape.id2label))]
        kinds = {label[2:] for label in self._labels if label != "O"}
        if kind is None or not kinds or not kinds <= set(KINDS):
            got = ", ".join(sorted(kinds)) or "none"
            raise InputError("not a tagger of RaTEScore's kinds", file=folder, got=got, expected=", ".join(KINDS))
        self._model, _ = read_model(folder, kind, what=what, shape=shape)
        self._tokenizer: Any = read_tokenizer(folder, what=what)
        check_vocabulary(self._tokenizer, int(shape.vocab_size), folder)
        self._max_tokens = min(_MAX_TOKENS, position_limit(shape))
        self._model.eval().to(device)
        self._device = device
        self.version = weights_hash(folder)
        self._cache = StateCache(cache, f"{self.version}-labels{self._max_tokens}")

    def entities(self, parts: Sequence[str]) -> dict[str, list[Entity]]:
        """The entities of each different sentence."""
        labels = states_of(parts, self._predict, self._cache)
        return {part: self._read(part, [self._labels[i] for i in row.tolist()]) for part, row in labels.items()}

    def _token_ids(self, parts: Sequence[str]) -> list[list[int]]:
        return [
            list(ids) for ids in self._tokenizer(list(parts), truncation=True, max_length=self._max_tokens)["input_ids"]
        ]

    @torch.inference_mode()
    def _predict(self, parts: list[str]) -> list[Tensor]:
        """The most likely label of each token of each sentence."""
        token_ids = self._token_ids(parts)
        rows: list[Tensor] = [torch.empty(0)] * len(parts)
        for batch in equal_length_batches([len(ids) for ids in token_ids]):
            ids = torch.tensor([token_ids[index] for index in batch], device=self._device)
            logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            for index, row in zip(batch, logits.argmax(dim=-1).cpu(), strict=True):
                rows[index] = row
        return rows

    def _read(self, part: str, labels: Sequence[str]) -> list[Entity]:
        tokens = self._tokenizer.convert_ids_to_tokens(self._token_ids([part])[0])
        around = {self._tokenizer.cls_token, self._tokenizer.sep_token}
        spans = entity_spans(labels, [token in around for token in tokens])
        return [
            Entity(self._tokenizer.convert_tokens_to_string(tokens[first : last + 1]), KINDS.index(kind))
            for first, last, kind in spans
        ]


class RaTEScorer:
    """Scores pairs of texts.

    Args:
        tagger: folder of RaTE-NER.
        encoder: folder of BioLORD.
        cache: folder of labels and states that are kept, if any.

    Raises:
        InputError: for a folder that cannot be used.
    """

    def __init__(self, tagger: Path, encoder: Path, *, device: torch.device, cache: Path | None = None) -> None:
        self._tagger = Tagger(tagger, device=device, cache=cache)
        self._encoder = read_encoder(encoder, what="BioLORD", device=device, max_tokens=_MAX_ENTITY_TOKENS)
        self._cache = StateCache(cache, f"{self._encoder.version}-cls{_MAX_ENTITY_TOKENS}")
        self.version = f"tagger {self._tagger.version}, encoder {self._encoder.version}"

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """RaTEScore (M,) of M pairs of (draft, reference)."""
        parts = {text: sentences(text) for pair in pairs for text in pair}
        entities = self._tagger.entities([part for own in parts.values() for part in own])
        names = [entity.text for own in entities.values() for entity in own]
        states = states_of(names, self._encoder.first_states, self._cache)
        vectors = {name: state / state.norm().clamp_min(1e-12) for name, state in states.items()}
        reports = {
            text: _Report.of([e for part in own for e in entities[part]], vectors) for text, own in parts.items()
        }
        scores = {pair: _score(*(reports[text] for text in pair)) for pair in dict.fromkeys(pairs)}
        return np.array([scores[pair] for pair in pairs], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Report:
    """The kinds (E,) and normalised states (E, dim) of a report's entities."""

    kinds: NDArray[np.int64]
    states: NDArray[np.float32]

    @classmethod
    def of(cls, entities: Sequence[Entity], vectors: Mapping[str, Tensor]) -> _Report:
        kinds = np.array([entity.kind for entity in entities], dtype=np.int64)
        states = [vectors[entity.text].numpy() for entity in entities]
        return cls(kinds, np.stack(states) if states else np.zeros((0, 0), dtype=np.float32))


_IS_DENIED = np.array([kind.startswith("NON-") for kind in KINDS])
_IS_FINDING = np.array([kind != "ANATOMY" for kind in KINDS])


def _score(draft: _Report, reference: _Report) -> float:
    if not len(draft.kinds) or not len(reference.kinds):
        return _NO_ENTITY
    cosines = reference.states @ draft.states.T
    precision = _directed(cosines, reference.kinds, draft.kinds)
    recall = _directed(cosines.T, draft.kinds, reference.kinds)
    return 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0


def _directed(cosines: NDArray[np.float32], kinds: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """S of the entities of one report, from their cosines (E, F) with those of the other."""
    best = cosines.max(axis=1)
    # Equal states give equal cosines up to rounding.
    matched = others[(cosines > best[:, None] - _SAME).argmax(axis=1)]
    weights = WEIGHTS[kinds, matched]
    both_findings = _IS_FINDING[kinds] & _IS_FINDING[matched]
    factors = np.where(both_findings & (_IS_DENIED[kinds] != _IS_DENIED[matched]), _DENIED_WEIGHT, 1.0)
    return float((best.astype(np.float64) * weights * factors).sum() / weights.sum())
