"""Text encoders for scores: batches over unique texts of equal length, and a cache of their states on disk.

A batch holds texts of one length in tokens, so that no state depends on padding. States are keyed by the hash of a text
below the hash of the weights; a folder of states holds nothing that another model or setting could take for its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from radweave.core.errors import InputError
from radweave.core.foreign_models import read_model, read_shape, read_tokenizer
from radweave.core.storage import sha256_file, sha256_json, write_aside
from radweave.labels.trained import check_vocabulary

TokenIds = NDArray[np.int64]
BATCH_TOKENS = 16384
"""Tokens that are encoded at once."""
_TOKENIZED_AT_A_TIME = 256
"""Texts; what the tokenizer makes of a text takes far more memory than its ids."""
_LONGEST = 1_000_000
"""Above this a tokenizer's limit means that it has none."""


def equal_length_batches(lengths: Sequence[int], most_tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Batches of indices, each of one length, from the shortest on; at most ``most_tokens`` of tokens in each."""
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for length, group in groupby(order, key=lambda index: lengths[index]):
        members = list(group)
        size = max(1, most_tokens // max(length, 1))
        for first in range(0, len(members), size):
            yield members[first : first + size]


def weights_hash(folder: Path) -> str:
    """Hash of a checkpoint's weights and configuration."""
    files = sorted((*folder.glob("*.safetensors"), *folder.glob("config.json")))
    return sha256_json({file.name: sha256_file(file) for file in files})[:12]


class StateCache:
    """Tensors by text in a folder, in safetensors files that are only ever added.

    Files that cannot be read are passed over: what they held is computed again.

    Args:
        folder: of all models' states; None keeps nothing.
        key: what decides a state beside its text: weights, layer, tokenizer settings.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        self._folder = None if folder is None else folder / key
        self._file_of: dict[str, Path] = {}
        for file in sorted(self._folder.glob("*.safetensors")) if self._folder is not None else ():
            try:
                with safe_open(str(file), framework="pt") as states:
                    self._file_of |= dict.fromkeys(states.keys(), file)
            except (OSError, SafetensorError):
                continue

    @property
    def is_kept(self) -> bool:
        """True where states are written."""
        return self._folder is not None

    def read(self, texts: Iterable[str]) -> dict[str, Tensor]:
        """The states of those texts that are in the folder."""
        if not self._file_of:
            return {}
        entries_of: dict[Path, list[tuple[str, str]]] = {}
        for text in texts:
            name = _name_of(text)
            if name in self._file_of:
                entries_of.setdefault(self._file_of[name], []).append((text, name))
        states: dict[str, Tensor] = {}
        for file, entries in entries_of.items():
            with safe_open(str(file), framework="pt") as opened:
                states |= {text: opened.get_tensor(name) for text, name in entries}
        return states

    def write(self, states: Mapping[str, Tensor]) -> None:
        """Add the states of texts as one more file."""
        if self._folder is None or not states:
            return
        named = {_name_of(text): state.contiguous().clone() for text, state in states.items()}
        path = self._folder / f"{sha256_json(sorted(named))[:32]}.safetensors"
        with write_aside(path) as partial:
            save_file(named, partial)
        self._file_of |= dict.fromkeys(named, path)


def _name_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def states_of(
    texts: Sequence[str], compute: Callable[[list[str]], list[Tensor]], cache: StateCache
) -> dict[str, Tensor]:
    """The state of each different text: from the cache, else computed and added to it."""
    unique = list(dict.fromkeys(texts))
    states = cache.read(unique)
    missing = [text for text in unique if text not in states]
    if missing:
        made = dict(zip(missing, compute(missing), strict=True))
        cache.write(made)
        states |= made
    return states


@dataclass(frozen=True, slots=True)
class PackedStates:
    """States of the tokens of N texts in one table.

    Attributes:
        rows: (T, dim), those of a text in a row.
        first: (N,) the row at which each text begins.
    """

    rows: Float[Tensor, "tokens dim"]
    first: NDArray[np.int64]


@dataclass(frozen=True)
class TextEncoder:
    """An encoder of transformers with its tokenizer.

    Attributes:
        model: gives ``last_hidden_state``.
        tokenizer: of transformers.
        max_tokens: longer texts are cut, special tokens counted.
        version: hash of the weights.
        device: of the model.
    """

    model: nn.Module
    tokenizer: Any
    max_tokens: int
    version: str
    device: torch.device

    def token_ids(self, texts: Sequence[str]) -> list[TokenIds]:
        """Token ids of each text with special tokens, cut at ``max_tokens``."""
        if not texts:
            return []
        if not self.tokenizer.is_fast:
            encoded = self.tokenizer(list(texts), truncation=True, max_length=self.max_tokens)
            return [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
        # The tokenizer below that of transformers, which makes an object for each text in a third of the time.
        backend = self.tokenizer.backend_tokenizer
        backend.enable_truncation(max_length=self.max_tokens)
        backend.no_padding()
        made = _by_words(backend, texts, self.max_tokens)
        whole = [text for text in texts if text not in made]
        for first in range(0, len(whole), _TOKENIZED_AT_A_TIME):
            own = whole[first : first + _TOKENIZED_AT_A_TIME]
            ids = (np.array(encoding.ids, dtype=np.int64) for encoding in backend.encode_batch_fast(own))
            made |= zip(own, ids, strict=True)
        return [made[text] for text in texts]

    @torch.inference_mode()
    def directions(self, token_ids: Sequence[TokenIds]) -> PackedStates:
        """Last states of the tokens of each text, of length 1."""
        lengths = [len(ids) for ids in token_ids]
        rows = torch.empty(sum(lengths), int(self.model.config.hidden_size))  # type: ignore[union-attr, arg-type]
        first, end = np.zeros(len(lengths), dtype=np.int64), 0
        for batch, hidden in self._in_batches(token_ids):
            count = hidden.shape[0] * hidden.shape[1]
            rows[end : end + count] = nn.functional.normalize(hidden, dim=-1).flatten(0, 1)
            first[batch] = end + hidden.shape[1] * np.arange(len(batch))
            end += count
        return PackedStates(rows, first)

    @torch.inference_mode()
    def first_states(self, texts: Sequence[str]) -> list[Float[Tensor, " dim"]]:
        """Last state of the first token ([CLS]) of each text, in the order of the texts."""
        states: list[Tensor] = [torch.empty(0)] * len(texts)
        for batch, hidden in self._in_batches(self.token_ids(texts)):
            for index, state in zip(batch, hidden[:, 0].float().cpu(), strict=True):
                states[index] = state
        return states

    def _in_batches(
        self, token_ids: Sequence[TokenIds]
    ) -> Iterator[tuple[list[int], Float[Tensor, "batch tokens dim"]]]:
        """Texts of one length, and their last states."""
        for batch in equal_length_batches([len(ids) for ids in token_ids]):
            ids = torch.from_numpy(np.stack([token_ids[index] for index in batch])).to(self.device)
            if ids.shape[1]:
                yield batch, self.model(input_ids=ids).last_hidden_state


def _by_words(backend: Tokenizer, texts: Sequence[str], max_tokens: int) -> dict[str, TokenIds]:
    """Token ids of those texts that byte-level BPE tokenizes word by word, each different word once.

    Such a tokenizer never joins what a single blank parts. Texts with other white space, and those that hold a token
    which was added to the vocabulary, are left out; so are all where the tokenizer is of another kind.
    """
    parts, model = backend.pre_tokenizer, backend.model
    is_byte_level = isinstance(parts, pre_tokenizers.ByteLevel) and parts.use_regex and not parts.add_prefix_space
    if not is_byte_level or not isinstance(model, models.BPE) or model.dropout or backend.normalizer is not None:
        return {}
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    if any(len(token.split()) != 1 for token in added):
        return {}
    words_of: dict[str, list[str]] = {}
    for text in texts:
        words = text.split()
        if words and text[:1] == " " and " ".join(words) == text[1:]:
            words_of[text] = words
    different = list(set(chain.from_iterable(words_of.values())))
    if holding := {word for word in different if any(token in word for token in added)}:
        words_of = {text: words for text, words in words_of.items() if holding.isdisjoint(words)}
    encoded = backend.encode_batch_fast([f" {word}" for word in different], add_special_tokens=False)
    ids_of = {word: encoding.ids for word, encoding in zip(different, encoded, strict=True)}
    frame = backend.encode("a")
    inside = frame.special_tokens_mask.index(0)
    end = len(frame.ids) - frame.special_tokens_mask[::-1].index(0)
    before, after = frame.ids[:inside], frame.ids[end:]
    most_inside = max_tokens - len(before) - len(after)
    return {
        text: np.array(
            [*before, *islice(chain.from_iterable(map(ids_of.__getitem__, words)), most_inside), *after], dtype=np.int64
        )
        for text, words in words_of.items()
    }


def read_encoder(
    folder: Path, *, what: str, device: torch.device, layers: int | None = None, max_tokens: int | None = None
) -> TextEncoder:
    """An encoder from a local folder, in single precision.

    Args:
        folder: safetensors, config.json and tokenizer files.
        what: name of the model, for messages.
        device: of the model.
        layers: keep only so many; all by default.
        max_tokens: cut texts there; at the model's own limit by default.

    Raises:
        InputError: for a folder that cannot be loaded, or a tokenizer with more words than the model.
    """
    shape = read_shape(folder, what=what)
    count_layers(shape, folder)
    if layers is not None:
        shape.num_hidden_layers = layers
    model, _ = read_model(folder, "encoder", what=what, shape=shape, may_be_new=("pooler",))
    tokenizer = read_tokenizer(folder, what=what)
    check_vocabulary(tokenizer, int(shape.vocab_size), folder)
    limits = [position_limit(shape), max_tokens, int(min(tokenizer.model_max_length, _LONGEST))]
    return TextEncoder(
        model.eval().to(device),
        tokenizer,
        min(limit for limit in limits if limit is not None),
        weights_hash(folder),
        device,
    )


def count_layers(shape: Any, folder: Path) -> int:
    """The number of layers that a text encoder's configuration states.

    Raises:
        InputError: for another kind of model; one with a decoder would give the decoder's states.
    """
    stated = shape.to_dict()
    names = (shape.attribute_map.get(name, name) for name in ("num_hidden_layers", "vocab_size", "hidden_size"))
    layers, *others = (stated.get(name) for name in names)
    if shape.is_encoder_decoder or not all(isinstance(number, int) for number in (layers, *others)):
        raise InputError("not a text encoder", file=folder, got=shape.model_type, expected="one like BERT or RoBERTa")
    return int(layers)


def position_limit(shape: Any) -> int:
    """The longest text of a model in tokens; RoBERTa and its relatives count positions from the padding index on."""
    positions = getattr(shape, "max_position_embeddings", None) or _LONGEST
    offset = int(shape.pad_token_id) + 1 if shape.model_type in _OFFSET_POSITIONS else 0
    return int(positions) - offset


_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer")
