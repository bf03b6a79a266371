"""The network that reads RadGraph entities and relations from a report: a text encoder, and heads over word spans.

Source: Wadden et al., "Entity, Relation, and Event Extraction with Contextualized Span Representations" (DyGIE++),
EMNLP 2019, as trained by Jain et al., "RadGraph", NeurIPS Datasets and Benchmarks 2021. Inference only, and only what
the published checkpoints use: no propagation over coreference or relations.

A word is the mean of its pieces' last states; a span is [first word; last word; embedding of its width]. Entities are
the argmax over labels with the null label at 0. Relations are scored between the n spans that a pruner ranks highest,

    s(i, j) = FFN([g_i; g_j; g_i * g_j]) + m_i + m_j,   null relation at 0,   n = ceil(spans_per_word * words)

with m the pruner's scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

# Rows of span pairs that are scored at once; all pairs of a long report would need gigabytes.
_PAIR_ROWS = 16


@dataclass(frozen=True, slots=True)
class SpanSettings:
    """Sizes that the checkpoint's config.json states, and its labels in the order of the outputs.

    ``entity_labels`` leaves the null label out; ``hidden_dims`` are the widths of every feed-forward part.
    """

    max_span_width: int
    width_dim: int
    hidden_dims: tuple[int, ...]
    spans_per_word: float
    entity_labels: tuple[str, ...]
    relation_labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadEntities:
    """Entities as (first word, last word, label), relations as (subject span, object span, name)."""

    entities: list[tuple[int, int, str]]
    relations: list[tuple[tuple[int, int], tuple[int, int], str]]


def feed_forward(input_dim: int, hidden_dims: Sequence[int], outputs: int) -> nn.Sequential:
    """Linear and ReLU for each hidden width, then a linear output; dropout does nothing at inference."""
    layers: list[nn.Module] = []
    for width in hidden_dims:
        layers += [nn.Linear(input_dim, width), nn.ReLU()]
        input_dim = width
    return nn.Sequential(*layers, nn.Linear(input_dim, outputs))


def enumerate_spans(num_words: int, max_width: int) -> list[tuple[int, int]]:
    """All spans (first, last) of up to ``max_width`` words, by first word, then by last."""
    return [(i, j) for i in range(num_words) for j in range(i, min(i + max_width, num_words))]


class SpanNetwork(nn.Module):
    """Encoder and heads. ``encoder`` is a transformers model with ``last_hidden_state``."""

    def __init__(self, encoder: nn.Module, hidden_size: int, settings: SpanSettings) -> None:
        super().__init__()
        self.settings = settings
        span_dim = 2 * hidden_size + settings.width_dim
        self.encoder = encoder
        self.width_embedding = nn.Embedding(settings.max_span_width, settings.width_dim)
        self.entity_scorer = feed_forward(span_dim, settings.hidden_dims, len(settings.entity_labels))
        self.pruner = feed_forward(span_dim, settings.hidden_dims, 1)
        self.relation_scorer = feed_forward(3 * span_dim, settings.hidden_dims, len(settings.relation_labels))

    def word_states(
        self, segments: Sequence[Tensor], frame: tuple[int, int], pieces: Sequence[tuple[int, int]]
    ) -> Float[Tensor, "words dim"]:
        """States of the words of one report.

        Args:
            segments: piece ids (T,) of each segment, special ids included; each is encoded by itself.
            frame: how many special ids stand before and after the pieces of a segment.
            pieces: per word its pieces [first, end) in the joined segments; an empty range makes zeros.
        """
        before, after = frame
        states = []
        for ids in segments:
            mask = torch.ones_like(ids)[None]
            hidden = self.encoder(input_ids=ids[None], attention_mask=mask).last_hidden_state[0]
            states.append(hidden[before : hidden.shape[0] - after])
        joined = torch.cat(states)
        nothing = joined.new_zeros(joined.shape[1])
        return torch.stack([joined[first:end].mean(0) if end > first else nothing for first, end in pieces])

    def read(self, words: Float[Tensor, "words dim"]) -> ReadEntities:
        """Entities and relations of one report from the states of its words."""
        spans = enumerate_spans(words.shape[0], self.settings.max_span_width)
        bounds = torch.tensor(spans, device=words.device)
        widths = self.width_embedding(bounds[:, 1] - bounds[:, 0])
        vectors = torch.cat([words[bounds[:, 0]], words[bounds[:, 1]], widths], dim=-1)
        labels = _with_null(self.entity_scorer(vectors)).argmax(-1).tolist()
        entities = [
            (first, last, self.settings.entity_labels[label - 1])
            for (first, last), label in zip(spans, labels, strict=True)
            if label > 0
        ]
        return ReadEntities(entities, self._relations(vectors, spans, words.shape[0]))

    def _relations(
        self, vectors: Float[Tensor, "spans dim"], spans: Sequence[tuple[int, int]], num_words: int
    ) -> list[tuple[tuple[int, int], tuple[int, int], str]]:
        kept = min(max(math.ceil(num_words * self.settings.spans_per_word), 1), len(spans))
        mentions = self.pruner(vectors)[:, 0]
        chosen = mentions.topk(kept).indices.sort().values
        places, vectors, mentions = chosen.tolist(), vectors[chosen], mentions[chosen]
        found = []
        for start in range(0, kept, _PAIR_ROWS):
            first = vectors[start : start + _PAIR_ROWS, None].expand(-1, kept, -1)
            second = vectors[None].expand(first.shape[0], -1, -1)
            scores = self.relation_scorer(torch.cat([first, second, first * second], dim=-1))
            scores = scores + (mentions[start : start + _PAIR_ROWS, None, None] + mentions[None, :, None])
            labels = _with_null(scores).argmax(-1)
            for i, j in labels.nonzero().tolist():
                name = self.settings.relation_labels[int(labels[i, j]) - 1]
                found.append((spans[places[start + i]], spans[places[j]], name))
        return found


def _with_null(scores: Float[Tensor, "*items labels"]) -> Float[Tensor, "*items labels+1"]:
    return torch.cat([scores.new_zeros(*scores.shape[:-1], 1), scores], dim=-1)
