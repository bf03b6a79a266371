"""What a tokenizer and a labeler make of the reports of a data set, kept beside its cache: made once.

DATASET/.cache/bpe-KEY.json    a tokenizer that was trained on these texts by these options
DATASET/.cache/ids-KEY.npy     the token ids of these texts by this tokenizer
DATASET/.cache/states-KEY.npy  the label states of these texts by this labeler

A key is a hash of all texts, in their order, and of the tokenizer or its options, or the labeler's code, so that what
is kept never has to be compared with the data set. What is damaged is made again; a data set that cannot be written
keeps nothing. Of each kind the ``KEPT`` files that were used last are kept: with other texts, tokenizers or libraries
nobody asks for the others.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from radweave.base.errors import InputError
from radweave.base.hashes import sha256_json
from radweave.base.json_files import read_json, write_json
from radweave.base.provenance import library_versions
from radweave.base.storage import write_aside
from radweave.base.study import LabelState
from radweave.data.cache.arrays import write_rows
from radweave.data.tokenizer import (
    BpeTokenizerConfig,
    TokenizerConfig,
    encode_all,
    tokenizer_fingerprint,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEWEST: Final = 1000
"""Fewer texts are encoded in less time than a file is worth."""
KEPT: Final = 24
"""A start of training uses one tokenizer, some three files of states and up to six of ids: the last few experiments."""
_DIGEST_WORDS: Final = 8


def built_tokenizer(
    config: TokenizerConfig, texts: Sequence[str], *, own: str | None, dataset: Path
) -> PreTrainedTokenizerBase:
    """The tokenizer of ``config``, trained on ``texts`` of the training split, or as it was kept.

    Raises:
        InputError: as ``config.build``.
    """
    if not isinstance(config, BpeTokenizerConfig) or len(texts) < FEWEST:
        return config.build(texts, own=own)
    key = sha256_json([config.model_dump(mode="json"), _of_texts(texts), library_versions()])
    place = dataset / ".cache" / f"bpe-{key[:16]}.json"
    with suppress(InputError, OSError, RecursionError):
        kept = read_json(place)
        if isinstance(kept, dict) and kept.get("key") == key and kept.get("sha256") == sha256_json(kept.get("words")):
            _note_use(place)
            return config.build((), own=own, trained=str(kept["words"]))
    tokenizer = config.build(texts, own=own)
    words = tokenizer.backend_tokenizer.to_str()
    with suppress(InputError, OSError):
        write_json(place, {"key": key, "sha256": sha256_json(words), "words": words})
        _sweep(place)
    return tokenizer


def token_ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, dataset: Path) -> Sequence[Sequence[int]]:
    """The ids of each text, without special tokens."""
    if len(texts) < FEWEST:
        return encode_all(tokenizer, texts)
    key = sha256_json([tokenizer_fingerprint(tokenizer), _of_texts(texts), library_versions()])
    place = dataset / ".cache" / f"ids-{key[:16]}.npy"
    kept = _kept(place, len(texts))
    if kept is None:
        ids = encode_all(tokenizer, texts)
        kept = np.array([*map(len, ids), *(number for row in ids for number in row)], dtype=np.int32)
        _keep(place, kept)
    else:
        _note_use(place)
    return _Rows(kept, len(texts))


def label_states(
    texts: Sequence[str],
    read: Callable[[Sequence[str]], Iterable[Mapping[str, LabelState]]],
    dataset: Path,
    *,
    classes: Sequence[str],
    by: Sequence[str],
) -> Iterable[Mapping[str, LabelState]]:
    """The state of each class in each text, as ``read`` gives them; ``by`` is what it reads by, such as its code."""
    if len(texts) < FEWEST:
        return read(texts)
    key = sha256_json([list(by), list(classes), _of_texts(texts)])
    place = dataset / ".cache" / f"states-{key[:16]}.npy"
    kept = _kept(place, len(texts) * len(classes))
    if kept is None:
        numbers = {state: number for number, state in enumerate(LabelState)}
        rows = (numbers[states[name]] for states in read(texts) for name in classes)
        kept = np.fromiter(rows, np.int32, len(texts) * len(classes))
        _keep(place, kept)
    else:
        _note_use(place)
    states = list(LabelState)
    return (
        {name: states[number] for name, number in zip(classes, row.tolist(), strict=True)}
        for row in kept.reshape(len(texts), len(classes))
    )


def _keep(place: Path, kept: NDArray[np.int32]) -> None:
    """Write what was made behind its digest, if the data set can be written, and let older files go."""
    shape = (_DIGEST_WORDS + len(kept),)
    with suppress(InputError, OSError), write_aside(place) as partial, write_rows(partial, np.int32, shape) as give:
        give(_digest(kept))
        give(kept)
    _sweep(place)


def _note_use(place: Path) -> None:
    with suppress(OSError):
        os.utime(place)


def _sweep(newest: Path) -> None:
    """Remove the files of this kind that were not used for longest; who has read one has all of it in memory."""
    kind = f"{newest.name.partition('-')[0]}-{'[0-9a-f]' * 16}{newest.suffix}"
    with suppress(OSError):
        used = sorted(newest.parent.glob(kind), key=lambda file: (file != newest, -file.stat().st_mtime_ns))
        for file in used[KEPT:]:
            file.unlink()


class _Rows(Sequence[Sequence[int]]):
    """Ids of texts in one array. Equal numbers are one object: 80 ids of a report take 640 bytes, not 3 kB."""

    def __init__(self, kept: NDArray[np.int32], count: int) -> None:
        self._starts = np.concatenate([[0], np.cumsum(kept[:count], dtype=np.int64)])
        self._ids = kept[count:]
        self._numbers = list(range(int(self._ids.max(initial=0)) + 1))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int | slice) -> list[int]:  # type: ignore[override]
        assert isinstance(place, int)
        return [self._numbers[number] for number in self._ids[self._starts[place] : self._starts[place + 1]].tolist()]


def _kept(place: Path, count: int) -> NDArray[np.int32] | None:
    """Lengths and ids as they were written; None where there are none, or others."""
    try:
        found = np.load(place, allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    if not isinstance(found, np.ndarray) or found.dtype != np.int32 or found.ndim != 1:
        return None
    digest, kept = found[:_DIGEST_WORDS], found[_DIGEST_WORDS:]
    is_whole = len(kept) >= count and np.array_equal(digest, _digest(kept))
    return kept if is_whole else None


def _digest(values: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(values).data).digest(), dtype=np.int32)


def _of_texts(texts: Sequence[str]) -> str:
    """SHA-256 of the texts in their order; where one ends is part of it."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
