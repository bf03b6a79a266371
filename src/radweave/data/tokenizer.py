"""Tokenizers: a byte-level BPE trained on the training split, or that of a pretrained language model."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from radweave.core.config import Config, Count
from radweave.core.errors import InputError
from radweave.core.foreign_models import read_tokenizer
from radweave.core.json_files import read_json, write_json
from radweave.core.provenance import library_versions
from radweave.core.storage import sha256_file, sha256_json, write_aside, writing
from radweave.core.study import LabelState
from radweave.data.cache.arrays import write_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TEXTS_AT_A_TIME = 4096
PAD, BOS, EOS = "<pad>", "<s>", "</s>"


class BpeTokenizerConfig(Config):
    """Byte-level BPE, trained on the reports of the training split only. It has no unknown token.

    ``force`` allows it for a pretrained language model, whose vocabulary is another.
    """

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=2000, ge=300, le=1_000_000)
    min_frequency: Count = 2
    force: bool = False

    def build(
        self, texts: Iterable[str], *, own: str | None = None, trained: str | None = None
    ) -> PreTrainedTokenizerBase:
        """Train on ``texts``, which must come from the training split.

        Args:
            texts: the reports.
            own: the checkpoint of the language model, where it is pretrained.
            trained: the result of an earlier training on the same texts, as JSON, used instead of training.

        Raises:
            InputError: if the language model has a tokenizer of its own, and ``force`` is not set; or if ``trained``
                is no tokenizer.
        """
        if own is not None and not self.force:
            raise _another_than(own, got="bpe")
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        if trained is None:
            tokenizer = self._trained(texts)
        else:
            try:
                tokenizer = Tokenizer.from_str(trained)
            except Exception as error:  # the library has no other kind
                raise InputError(f"not a tokenizer: {error}") from None
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            pad_token=PAD,
            bos_token=BOS,
            eos_token=EOS,
            clean_up_tokenization_spaces=False,
        )

    def _trained(self, texts: Iterable[str]) -> Any:
        """A tokenizer of the tokenizers library, trained on ``texts``."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        # Single digits, so that "12 mm" and "13 mm" share tokens.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=self.min_frequency,
            special_tokens=[PAD, BOS, EOS],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer=trainer)
        return tokenizer


class PretrainedTokenizerConfig(Config):
    """The tokenizer of a checkpoint folder or hub name; without ``path``, of the language model's checkpoint.

    ``force`` allows another ``path`` for a pretrained language model, whose vocabulary is another.
    """

    kind: Literal["pretrained"] = "pretrained"
    path: str | None = None
    force: bool = False

    def build(self, texts: Iterable[str], *, own: str | None = None) -> PreTrainedTokenizerBase:
        """Load it; ``texts`` are ignored.

        Args:
            texts: the reports.
            own: the checkpoint of the language model, where it is pretrained.

        Raises:
            InputError: if there is no such tokenizer, or its vocabulary differs from the language model's own and
                ``force`` is not set.
        """
        path = self.path or own
        if path is None:
            raise InputError(
                "the language model is not pretrained: it brings no tokenizer", field="data.tokenizer.path"
            )
        tokenizer = load_tokenizer(path)
        if own not in (None, path) and not self.force:
            assert own is not None
            if load_tokenizer(own).get_vocab() != tokenizer.get_vocab():
                raise _another_than(own, got=path)
        return tokenizer


def _another_than(own: str, *, got: str) -> InputError:
    return InputError(
        "the tokenizer is not that of this language model, whose words would mean something else",
        file=own,
        field="data.tokenizer",
        got=got,
        expected="data.tokenizer=pretrained, which takes the language model's own, or data.tokenizer.force=true",
    )


TokenizerConfig = Annotated[BpeTokenizerConfig | PretrainedTokenizerConfig, Field(discriminator="kind")]


def load_tokenizer(path: Path | str) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a folder, or, where ``path`` is a text, a hub name.

    A BERT tokenizer's [CLS] and [SEP] become begin and end tokens, as in the BERT decoders of Rothe et al. (TACL 2020).
    A missing pad token is filled with the end token.

    Raises:
        InputError: if there is none, or it has no end token.
    """
    tokenizer: Any = read_tokenizer(path)
    if tokenizer.eos_token_id is None and tokenizer.sep_token_id is not None:
        tokenizer.bos_token, tokenizer.eos_token = tokenizer.cls_token, tokenizer.sep_token
    if tokenizer.eos_token_id is None:
        raise InputError("the tokenizer has no end-of-text token", file=path, field="eos_token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def spare_words(tokenizer: PreTrainedTokenizerBase) -> int:
    """Number of trailing special tokens that occur in neither reports nor the chat template.

    Gemma's tokenizer ends with an image token, for which its text models have no embedding.
    """
    template = str(tokenizer.chat_template or "")
    used = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    added, count = tokenizer.added_tokens_decoder, 0
    for number in range(len(tokenizer) - 1, -1, -1):
        token = added.get(number)
        if token is None or not token.special or number in used or token.content in template:
            break
        count += 1
    return count


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer's JSON files into ``folder``."""
    tokenizer.save_pretrained(str(folder))


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 over the files the tokenizer saves."""
    with tempfile.TemporaryDirectory() as folder, writing(Path(folder)):
        save_tokenizer(tokenizer, Path(folder))
        return sha256_json({path.name: sha256_file(path) for path in sorted(Path(folder).iterdir())})


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a report's text; words that look like a special token are encoded as plain text."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return ids


def encode_all(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """``encode`` of each text, in large batches that a fast tokenizer spreads over all cores."""
    ids: list[list[int]] = []
    for first in range(0, len(texts), _TEXTS_AT_A_TIME):
        some = tokenizer(
            list(texts[first : first + _TEXTS_AT_A_TIME]),
            add_special_tokens=False,
            split_special_tokens=True,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        ids.extend(some["input_ids"])
    return ids


def decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    """Text of token ids, special tokens left out."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.strip()


# Cache of tokenizers, token ids and label states of the reports of a data set.
#
# DATASET/.cache/bpe-KEY.json    a tokenizer trained on these texts with these options
# DATASET/.cache/ids-KEY.npy     the token ids of these texts by this tokenizer
# DATASET/.cache/states-KEY.npy  the label states of these texts by this labeler
#
# The key is a hash of all texts in order, and of the tokenizer, its options or the labeler's code, so that entries are
# never compared with the data set. Damaged files are made again; without write access nothing is cached. The
# ``MAX_FILES`` most recently used files of each kind stay.

FEWEST: Final = 1000
"""Fewer texts are encoded faster than a file is read."""
MAX_FILES: Final = 24
"""A start of training uses one tokenizer, some three files of states and up to six of ids: the last few experiments."""
_DIGEST_WORDS: Final = 8


def built_tokenizer(
    config: TokenizerConfig, texts: Sequence[str], *, own: str | None, dataset: Path
) -> PreTrainedTokenizerBase:
    """The tokenizer of ``config``, trained on ``texts`` of the training split, or cached.

    Raises:
        InputError: as ``config.build``.
    """
    if not isinstance(config, BpeTokenizerConfig) or len(texts) < FEWEST:
        return config.build(texts, own=own)
    key = sha256_json([config.model_dump(mode="json"), _texts_digest(texts), library_versions()])
    path = dataset / ".cache" / f"bpe-{key[:16]}.json"
    with suppress(InputError, OSError, RecursionError):
        cached = read_json(path)
        if (
            isinstance(cached, dict)
            and cached.get("key") == key
            and cached.get("sha256") == sha256_json(cached.get("words"))
        ):
            _touch(path)
            return config.build((), own=own, trained=str(cached["words"]))
    tokenizer = config.build(texts, own=own)
    words = tokenizer.backend_tokenizer.to_str()
    with suppress(InputError, OSError):
        write_json(path, {"key": key, "sha256": sha256_json(words), "words": words})
        _sweep(path)
    return tokenizer


def token_ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, dataset: Path) -> Sequence[Sequence[int]]:
    """The ids of each text, without special tokens."""
    if len(texts) < FEWEST:
        return encode_all(tokenizer, texts)
    key = sha256_json([tokenizer_fingerprint(tokenizer), _texts_digest(texts), library_versions()])
    path = dataset / ".cache" / f"ids-{key[:16]}.npy"
    cached = _read_cached(path, len(texts))
    if cached is None:
        ids = encode_all(tokenizer, texts)
        cached = np.array([*map(len, ids), *(number for row in ids for number in row)], dtype=np.int32)
        _write_cached(path, cached)
    else:
        _touch(path)
    return _TokenRows(cached, len(texts))


def label_states(
    texts: Sequence[str],
    read: Callable[[Sequence[str]], Iterable[Mapping[str, LabelState]]],
    dataset: Path,
    *,
    classes: Sequence[str],
    by: Sequence[str],
) -> Iterable[Mapping[str, LabelState]]:
    """The state of each class in each text by ``read``, cached under a key that includes ``by``, such as its code."""
    if len(texts) < FEWEST:
        return read(texts)
    key = sha256_json([list(by), list(classes), _texts_digest(texts)])
    path = dataset / ".cache" / f"states-{key[:16]}.npy"
    cached = _read_cached(path, len(texts) * len(classes))
    if cached is None:
        numbers = {state: number for number, state in enumerate(LabelState)}
        rows = (numbers[states[name]] for states in read(texts) for name in classes)
        cached = np.fromiter(rows, np.int32, len(texts) * len(classes))
        _write_cached(path, cached)
    else:
        _touch(path)
    states = list(LabelState)
    return (
        {name: states[number] for name, number in zip(classes, row.tolist(), strict=True)}
        for row in cached.reshape(len(texts), len(classes))
    )


def _write_cached(path: Path, values: NDArray[np.int32]) -> None:
    """Write the digest and the values, if the data set can be written, and remove the oldest files."""
    shape = (_DIGEST_WORDS + len(values),)
    with suppress(InputError, OSError), write_aside(path) as partial, write_rows(partial, np.int32, shape) as append:
        append(_digest(values))
        append(values)
    _sweep(path)


def _touch(path: Path) -> None:
    with suppress(OSError):
        os.utime(path)


def _sweep(newest: Path) -> None:
    """Remove the least recently used files of this kind; their readers have them in memory."""
    kind = f"{newest.name.partition('-')[0]}-{'[0-9a-f]' * 16}{newest.suffix}"
    with suppress(OSError):
        used = sorted(newest.parent.glob(kind), key=lambda file: (file != newest, -file.stat().st_mtime_ns))
        for file in used[MAX_FILES:]:
            file.unlink()


class _TokenRows(Sequence[Sequence[int]]):
    """Ids of texts in one array. Equal numbers share an object: 80 ids of a report take 640 bytes, not 3 kB."""

    def __init__(self, values: NDArray[np.int32], count: int) -> None:
        self._starts = np.concatenate([[0], np.cumsum(values[:count], dtype=np.int64)])
        self._ids = values[count:]
        self._numbers = list(range(int(self._ids.max(initial=0)) + 1))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int | slice) -> list[int]:  # type: ignore[override]
        assert isinstance(row, int)
        return [self._numbers[number] for number in self._ids[self._starts[row] : self._starts[row + 1]].tolist()]


def _read_cached(path: Path, count: int) -> NDArray[np.int32] | None:
    """The values of a cached file; None if it is missing or damaged."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError):
        return None
    if not isinstance(array, np.ndarray) or array.dtype != np.int32 or array.ndim != 1:
        return None
    digest, values = array[:_DIGEST_WORDS], array[_DIGEST_WORDS:]
    is_whole = len(values) >= count and np.array_equal(digest, _digest(values))
    return values if is_whole else None


def _digest(values: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(values).data).digest(), dtype=np.int32)


def _texts_digest(texts: Sequence[str]) -> str:
    """SHA-256 of the texts in order, with their lengths."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
