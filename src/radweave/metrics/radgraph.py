"""RadGraph-F1 with a user's local copy of the published weights; nothing is downloaded.

The folder is a published checkpoint as unpacked, with the text encoder's tokenizer and shape beside it:

    config.json  weights.th  vocabulary/                 from radgraph.tar.gz, radgraph-xl.tar.gz, ...
    encoder/     config.json and tokenizer files of the model that config.json names

The network is ours (``radgraph_network``): the radgraph package asks the Hub for its encoder each time, and calls
methods of tokenizers that transformers 5 no longer has. ``weights.th`` is read as tensors only, never as code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from radweave.core.errors import InputError
from radweave.core.foreign_models import model_of_shape, read_shape, read_tokenizer
from radweave.core.json_files import read_json
from radweave.core.storage import read_text, sha256_file
from radweave.labels.trained import load_strictly, read_state
from radweave.metrics.catalogue import definitions

# The network that reads RadGraph entities and relations from a report: a text encoder, and heads over word spans.
#
# Source: Wadden et al., "Entity, Relation, and Event Extraction with Contextualized Span Representations" (DyGIE++),
# EMNLP 2019, as trained by Jain et al., "RadGraph", NeurIPS Datasets and Benchmarks 2021. Inference only, and only what
# the published checkpoints use: no propagation over coreference or relations.
#
# A word is the mean of its pieces' last states; a span is [first word; last word; embedding of its width]. Entities are
# the argmax over labels with the null label at 0. Relations are scored between the n spans that a pruner ranks highest,
#
# s(i, j) = FFN([g_i; g_j; g_i * g_j]) + m_i + m_j,   null relation at 0,   n = ceil(spans_per_word * words)
#
# with m the pruner's scores.


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
        piece_states = torch.cat(states)
        nothing = piece_states.new_zeros(piece_states.shape[1])
        return torch.stack([piece_states[first:end].mean(0) if end > first else nothing for first, end in pieces])

    def read(self, words: Float[Tensor, "words dim"]) -> ReadEntities:
        """Entities and relations of one report from the states of its words."""
        count, widest = words.shape[0], self.settings.max_span_width
        spans = [(i, j) for i in range(count) for j in range(i, min(i + widest, count))]
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
        num_kept = min(max(math.ceil(num_words * self.settings.spans_per_word), 1), len(spans))
        mentions = self.pruner(vectors)[:, 0]
        chosen = mentions.topk(num_kept).indices.sort().values
        places, vectors, mentions = chosen.tolist(), vectors[chosen], mentions[chosen]
        relations = []
        for start in range(0, num_kept, _PAIR_ROWS):
            first = vectors[start : start + _PAIR_ROWS, None].expand(-1, num_kept, -1)
            second = vectors[None].expand(first.shape[0], -1, -1)
            scores = self.relation_scorer(torch.cat([first, second, first * second], dim=-1))
            scores = scores + (mentions[start : start + _PAIR_ROWS, None, None] + mentions[None, :, None])
            labels = _with_null(scores).argmax(-1)
            for i, j in labels.nonzero().tolist():
                name = self.settings.relation_labels[int(labels[i, j]) - 1]
                relations.append((spans[places[start + i]], spans[places[j]], name))
        return relations


def _with_null(scores: Float[Tensor, "*items labels"]) -> Float[Tensor, "*items labels+1"]:
    return torch.cat([scores.new_zeros(*scores.shape[:-1], 1), scores], dim=-1)


# RadGraph-F1: what two reports' graphs of entities and relations have in common.
#
# Source: Delbrouck et al., "Improving the Factual Correctness of Radiology Report Generation with Semantic Rewards",
# Findings of EMNLP 2022, Sec. 3; the three levels as in the radgraph package 0.1.18. A report's graph becomes a set,
# and the score is the F1 of two sets:
#
# simple    (words, label) of every entity
# partial   (words, label, has a relation or not)
# complete  (words, label, relation, words of its object) per relation; (words, label) of an entity without any
#
# Conventions of the package that are kept: the score is 0 where either graph is empty, also where both are; words are
# compared as they are written, and in lower case only within a relation.


COMBINED = "RadGraph_combined"
LEVELS = tuple(key for key in definitions("radgraph") if key != COMBINED)
"""Keys of the three reward levels, in the order of the sets."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Words first..last (inclusive) of a report, its label, and its relations as (name, key of the object)."""

    tokens: str
    label: str
    start: int
    end: int
    relations: tuple[tuple[str, str], ...] = ()


Graph = Mapping[str, Entity]


def reward_sets(graph: Graph) -> tuple[set[tuple[Any, ...]], ...]:
    """The sets that are compared at each of ``LEVELS``."""
    simple: set[tuple[Any, ...]] = set()
    partial: set[tuple[Any, ...]] = set()
    complete: set[tuple[Any, ...]] = set()
    for entity in graph.values():
        plain = (entity.tokens, entity.label)
        simple.add(plain)
        if not entity.relations:
            partial.add(plain)
            complete.add(plain)
            continue
        partial.add((*plain, True))
        for name, target in entity.relations:
            complete.add((entity.tokens.lower(), entity.label, name, graph[target].tokens.lower()))
    return simple, partial, complete


def radgraph_f1(hyp: Graph, ref: Graph) -> tuple[float, float, float]:
    """F1 at each of ``LEVELS``; 0 where either graph has no entity."""
    if not hyp or not ref:
        return 0.0, 0.0, 0.0
    simple, partial, complete = (
        _f1(hyp_set, ref_set) for hyp_set, ref_set in zip(reward_sets(hyp), reward_sets(ref), strict=True)
    )
    return simple, partial, complete


def combined_f1(hyp: Graph, ref: Graph) -> float:
    """Mean of the F1 of entities (words, label) and of relations (entity, entity, name), words as they are written.

    F1 is 0 where both sets are empty, so that a report without relations scores at most 0.5 against itself.

    Source: Yu et al., "Evaluating Progress in Automatic Chest X-Ray Radiology Report Generation", Patterns 2023, as the
    CXR-Report-Metric repository computes it.
    """
    entities = [{(entity.tokens, entity.label) for entity in graph.values()} for graph in (hyp, ref)]
    relations = [_relation_set(graph) for graph in (hyp, ref)]
    return (_f1(*entities) + _f1(*relations)) / 2.0


def _relation_set(graph: Graph) -> set[tuple[Any, ...]]:
    plain = {key: (entity.tokens, entity.label) for key, entity in graph.items()}
    return {(plain[key], plain[target], name) for key, entity in graph.items() for name, target in entity.relations}


def _f1(hyp: set[tuple[Any, ...]], ref: set[tuple[Any, ...]]) -> float:
    return 2.0 * len(hyp & ref) / (len(hyp) + len(ref)) if hyp or ref else 0.0


# The word patterns of the two generations of checkpoints.
_MARKS = re.compile(r"([/,:.!?()])")
_WORDS = re.compile(r"\w+|[^\w\s]+")
_SPACES = re.compile(r"\s+")
_APART = ((").", ") ."), ("%.", "% ."), (".'", ". '"), ("%,", "% ,"), ("%)", "% )"))
_ESCAPES = (("\\n", "  "), ("\\f", "  "), ("\\u2122", "      "), ('\\"', "``"))
_FIRST_GENERATION = ("radgraph", "None")


class RadGraphScorer:
    """Scores pairs of texts; the graph of a text is read once."""

    def __init__(self, reader: RadGraphReader) -> None:
        self._reader = reader
        self._graphs: dict[str, dict[str, Entity]] = {}

    @property
    def version(self) -> str:
        return f"{self._reader.name} {self._reader.version}"

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """F1 (M, 4) of M pairs of (draft, reference): at each of ``LEVELS``, then the combined one."""
        for text in dict.fromkeys(text for pair in pairs for text in pair):
            if text not in self._graphs:
                self._graphs[text] = self._reader.graph(text)
        graphs = ((self._graphs[draft], self._graphs[reference]) for draft, reference in pairs)
        scores = [(*radgraph_f1(*both), combined_f1(*both)) for both in graphs]
        return np.array(scores, dtype=np.float64).reshape(len(pairs), len(LEVELS) + 1)


def words_of(text: str, checkpoint: str) -> list[str]:
    """Words as the checkpoint was trained on: marks apart (radgraph), or letters and marks apart (radgraph-xl)."""
    if checkpoint in _FIRST_GENERATION:
        return _MARKS.sub(r" \1 ", text).split()
    for mark, blank in _ESCAPES:
        text = text.replace(mark, blank)
    spaced = " ".join(_WORDS.findall(_SPACES.sub(" ", text)))
    for together, apart in _APART:
        spaced = spaced.replace(together, apart)
    return spaced.split()


class RadGraphReader:
    """Reads the graph of a report. ``name`` is the checkpoint's own, ``version`` the hash of its weights.

    Raises:
        InputError: for a file that is missing, or weights that are not those of the network in config.json.
    """

    def __init__(self, folder: Path, *, device: str = "cpu") -> None:
        config = _config(folder)
        self.name, settings = _settings(config, folder)
        encoder, self._tokenizer = _encoder(config, folder)
        width = int(encoder.config.hidden_size)
        network = SpanNetwork(encoder, width, settings)
        path = folder / "weights.th"
        load_strictly(network, _renamed(read_state(path), self.name), path)
        self.version = sha256_file(path)[:12]
        self._network = network.eval().to(device)
        self._device = device
        self._frame = _special_ids(self._tokenizer, folder)
        self._max_pieces = _bert(config, folder)[1] - len(self._frame[0]) - len(self._frame[1])

    @torch.inference_mode()
    def graph(self, text: str) -> dict[str, Entity]:
        """Entities by number ("1", "2", ...) in the order of the text; one without text or words has none."""
        words = words_of(text, self.name)
        if not words:
            return {}
        segments, pieces = self._pieces(words)
        states = self._network.word_states(segments, (len(self._frame[0]), len(self._frame[1])), pieces)
        return _graph(words, self._network.read(states))

    def _pieces(self, words: Sequence[str]) -> tuple[list[Tensor], list[tuple[int, int]]]:
        """Piece ids in segments the encoder can hold, and each word's range of pieces."""
        ids: list[int] = []
        ranges = []
        for word in words:
            first = len(ids)
            ids += self._tokenizer(word[1:] if word in ("/.", "/?") else word, add_special_tokens=False)["input_ids"]
            ranges.append((first, len(ids)))
        before, after = self._frame
        cuts = [ids[i : i + self._max_pieces] for i in range(0, max(len(ids), 1), self._max_pieces)]
        return [torch.tensor([*before, *cut, *after], device=self._device) for cut in cuts], ranges


def _graph(words: Sequence[str], read: ReadEntities) -> dict[str, Entity]:
    keys = {(first, last): str(number) for number, (first, last, _) in enumerate(read.entities, start=1)}
    relations: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for subject, target, name in read.relations:
        if subject in keys and target in keys:
            relations.setdefault(subject, []).append((name, keys[target]))
    return {
        keys[first, last]: Entity(
            " ".join(words[first : last + 1]), label, first, last, tuple(relations.get((first, last), ()))
        )
        for first, last, label in read.entities
    }


def _config(folder: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        raise InputError("no folder with the weights of RadGraph", file=folder, expected="a local folder")
    for name in ("config.json", "weights.th", "vocabulary"):
        if not (folder / name).exists():
            raise InputError("RadGraph needs files that are missing", file=folder, expected=name)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise InputError("not a RadGraph configuration", file=folder / "config.json")
    return config


def _settings(config: Mapping[str, Any], folder: Path) -> tuple[str, SpanSettings]:
    """The checkpoint's name, which its label files carry, and its sizes."""
    files = sorted((folder / "vocabulary").glob("*__ner_labels.txt"))
    named = {file.name.removesuffix("__ner_labels.txt"): file for file in files}
    name = folder.name if folder.name in named else next(iter(named), "")
    relation_file = folder / "vocabulary" / f"{name}__relation_labels.txt"
    if not name or (len(named) > 1 and name != folder.name) or not relation_file.is_file():
        raise InputError(
            "the checkpoint's labels are not clear",
            file=folder / "vocabulary",
            got=", ".join(named) or "no *__ner_labels.txt",
            expected="one *__ner_labels.txt with its *__relation_labels.txt, or a folder of that name",
        )
    entity_labels = _lines(named[name])
    if not entity_labels or entity_labels[0]:
        raise InputError("the first entity label must be the empty one", file=named[name])
    try:
        model = config["model"]
        modules, forward = model["modules"], model["feedforward_params"]
        if modules.get("coref", {}).get("coref_prop", 0):
            raise InputError("checkpoints with coreference propagation are not supported", file=folder / "config.json")
        hidden = forward["hidden_dims"]
        layers = int(forward["num_layers"])
        return name, SpanSettings(
            max_span_width=int(model["max_span_width"]),
            width_dim=int(model["feature_size"]),
            hidden_dims=tuple(hidden) if isinstance(hidden, list) else (int(hidden),) * layers,
            spans_per_word=float(modules["relation"]["spans_per_word"]),
            entity_labels=entity_labels[1:],
            relation_labels=_lines(relation_file),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"not a RadGraph configuration: {error}", file=folder / "config.json") from None


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(read_text(path).removesuffix("\n").split("\n"))


def _bert(config: Mapping[str, Any], folder: Path) -> tuple[str, int]:
    """Name and maximum length of the text encoder."""
    try:
        bert = config["model"]["embedder"]["token_embedders"]["bert"]
        return str(bert["model_name"]), int(bert["max_length"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a RadGraph configuration: {error}", file=folder / "config.json") from None


def _encoder(config: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    """The text encoder without its weights, and its tokenizer, from ``encoder/``."""
    home = folder / "encoder"
    wanted = f"config.json and the tokenizer of {_bert(config, folder)[0]} in encoder/"
    has_words = any((home / name).is_file() for name in ("vocab.txt", "tokenizer.json"))
    if not (home / "config.json").is_file() or not has_words:
        raise InputError("RadGraph needs files that are missing", file=folder, expected=wanted)
    what = "the text encoder"
    shape = read_shape(home, what=what)
    return model_of_shape(shape, "encoder", what=what, file=home), read_tokenizer(home, what=what)


def _special_ids(tokenizer: Any, folder: Path) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and after a text."""
    inside = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    around = list(tokenizer("a", add_special_tokens=True)["input_ids"])
    for start in range(len(around) - len(inside) + 1):
        if inside and around[start : start + len(inside)] == inside:
            return around[:start], around[start + len(inside) :]
    raise InputError("the tokenizer does not fit the text encoder", file=folder / "encoder")


def _renamed(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The checkpoint's tensors under the names of ``SpanNetwork``; parts for other data sets and tasks are left out."""
    prefixes = {
        "_embedder.token_embedder_bert._matched_embedder.transformer_model.": "encoder.",
        "_endpoint_span_extractor._span_width_embedding.": "width_embedding.",
    }
    heads = {
        f"_ner._ner_scorers.{name}__ner_labels.0._module.": ("entity_scorer", None),
        f"_ner._ner_scorers.{name}__ner_labels.1._module.": ("entity_scorer", -1),
        f"_relation._mention_pruners.{name}__relation_labels._scorer.0._module.": ("pruner", None),
        f"_relation._mention_pruners.{name}__relation_labels._scorer.1._module.": ("pruner", -1),
        f"_relation._relation_feedforwards.{name}__relation_labels.": ("relation_scorer", None),
        f"_relation._relation_scorers.{name}__relation_labels.": ("relation_scorer", -1),
    }
    hidden = sum(1 for key in state if re.fullmatch(rf"{re.escape(next(iter(heads)))}_linear_layers\.\d+\.weight", key))
    renamed = {}
    for key, value in state.items():
        for old, new in prefixes.items():
            if key.startswith(old):
                renamed[new + key.removeprefix(old)] = value
        for old, (head, place) in heads.items():
            if not key.startswith(old):
                continue
            rest = key.removeprefix(old)
            if place is None:
                # Hidden layer n stands at 2n in ours, with its ReLU behind it.
                number, kind = rest.removeprefix("_linear_layers.").split(".")
                renamed[f"{head}.{2 * int(number)}.{kind}"] = value
            else:
                renamed[f"{head}.{2 * hidden}.{rest}"] = value
    return renamed
