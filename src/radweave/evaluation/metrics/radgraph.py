"""RadGraph-F1 with a user's local copy of the published weights; nothing is downloaded.

The folder is a published checkpoint as unpacked, with the text encoder's tokenizer and shape beside it:

    config.json  weights.th  vocabulary/                 from radgraph.tar.gz, radgraph-xl.tar.gz, ...
    encoder/     config.json and tokenizer files of the model that config.json names

The network is ours (``radgraph_network``): the radgraph package asks the Hub for its encoder each time, and calls
methods of tokenizers that transformers 5 no longer has. ``weights.th`` is read as tensors only, never as code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_file
from radweave.base.json_files import read_json
from radweave.evaluation.metrics.radgraph_network import ReadEntities, SpanNetwork, SpanSettings
from radweave.evaluation.metrics.radgraph_reward import RADGRAPH_DEFINITIONS, Entity, best_radgraph_f1
from radweave.evaluation.statistics import Statistic, mean_statistic
from radweave.labels.trained import load_strictly, read_state
from radweave.outside.models import model_of_shape, read_shape, read_tokenizer

# The word patterns of the two generations of checkpoints.
_MARKS = re.compile(r"([/,:.!?()])")
_WORDS = re.compile(r"\w+|[^\w\s]+")
_SPACES = re.compile(r"\s+")
_APART = ((").", ") ."), ("%.", "% ."), (".'", ". '"), ("%,", "% ,"), ("%)", "% )"))
_ESCAPES = (("\\n", "  "), ("\\f", "  "), ("\\u2122", "      "), ('\\"', "``"))
_FIRST_GENERATION = ("radgraph", "None")
# What the package itself asks of an empty text.
_NO_TEXT = "None"


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why there is no RadGraph-F1."""

    reason: str


@dataclass(frozen=True, slots=True)
class RadGraphScores:
    statistics: dict[str, Statistic]
    version: str


def radgraph_statistics(
    hyps: Sequence[str], refs: Sequence[Sequence[str]], folder: Path
) -> RadGraphScores | Unavailable:
    """RadGraph-F1 of N hypotheses, each against the best of its references, or why there is none."""
    try:
        reader = RadGraphReader(folder)
    except InputError as error:
        return Unavailable(str(error))
    graphs = {text: reader.graph(text) for text in dict.fromkeys((*hyps, *(ref for group in refs for ref in group)))}
    scores = np.array(
        [best_radgraph_f1(graphs[hyp], [graphs[ref] for ref in group]) for hyp, group in zip(hyps, refs, strict=True)],
        dtype=np.float64,
    )
    return RadGraphScores(
        {name: mean_statistic(scores[:, i]) for i, name in enumerate(RADGRAPH_DEFINITIONS)},
        f"{reader.name} {reader.version}",
    )


def words_of(text: str, checkpoint: str) -> list[str]:
    """Words as the checkpoint was trained on: marks apart (radgraph), or letters and marks apart (radgraph-xl)."""
    if checkpoint in _FIRST_GENERATION:
        return _MARKS.sub(r" \1 ", text).split()
    for mark, blank in _ESCAPES:
        text = text.replace(mark, blank)
    joined = " ".join(_WORDS.findall(_SPACES.sub(" ", text)))
    for together, apart in _APART:
        joined = joined.replace(together, apart)
    return joined.split()


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
        self._room = _max_length(config, folder) - len(self._frame[0]) - len(self._frame[1])

    @torch.inference_mode()
    def graph(self, text: str) -> dict[str, Entity]:
        """Entities by number ("1", "2", ...) in the order of the text; one without text or words has none."""
        words = words_of(text or _NO_TEXT, self.name)
        if not text.strip() or not words:
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
        cuts = [ids[i : i + self._room] for i in range(0, max(len(ids), 1), self._room)]
        return [torch.tensor([*before, *cut, *after], device=self._device) for cut in cuts], ranges


def _graph(words: Sequence[str], found: ReadEntities) -> dict[str, Entity]:
    keys = {(first, last): str(number) for number, (first, last, _) in enumerate(found.entities, start=1)}
    relations: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for subject, target, name in found.relations:
        if subject in keys and target in keys:
            relations.setdefault(subject, []).append((name, keys[target]))
    return {
        keys[first, last]: Entity(
            " ".join(words[first : last + 1]), label, first, last, tuple(relations.get((first, last), ()))
        )
        for first, last, label in found.entities
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
    text = path.read_text(encoding="utf-8")
    return tuple(text.removesuffix("\n").split("\n"))


def _bert(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    try:
        bert = config["model"]["embedder"]["token_embedders"]["bert"]
        return {"model_name": str(bert["model_name"]), "max_length": int(bert["max_length"])}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a RadGraph configuration: {error}", file=folder / "config.json") from None


def _max_length(config: Mapping[str, Any], folder: Path) -> int:
    return int(_bert(config, folder)["max_length"])


def _encoder(config: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    """The text encoder without its weights, and its tokenizer, from ``encoder/``."""
    home = folder / "encoder"
    wanted = f"config.json and the tokenizer of {_bert(config, folder)['model_name']} in encoder/"
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
