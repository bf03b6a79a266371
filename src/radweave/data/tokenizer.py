"""Tokenizers: a byte-level BPE trained on the training split, or the one that comes with a language model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from radweave.base.config import Config, Count
from radweave.base.errors import InputError
from radweave.outside.models import read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TEXTS_AT_A_TIME = 4096
PAD, BOS, EOS = "<pad>", "<s>", "</s>"


class BpeTokenizerConfig(Config):
    """Byte-level BPE, trained on the reports of the training split only. It has no unknown token.

    ``force`` gives it to a pretrained language model, which has learnt another one's words.
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
            trained: what an earlier training on the same texts came to, as JSON; it is taken instead of training.

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
        # Digits stand alone: "12 mm" and "13 mm" then share what they share.
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

    ``force`` gives the tokenizer of another ``path`` to a language model that has learnt its own one's words.
    """

    kind: Literal["pretrained"] = "pretrained"
    path: str | None = None
    force: bool = False

    def build(self, texts: Iterable[str], *, own: str | None = None) -> PreTrainedTokenizerBase:
        """Load it; ``texts`` are not looked at.

        Args:
            texts: the reports.
            own: the checkpoint of the language model, where it is pretrained.

        Raises:
            InputError: if there is no such tokenizer, or it has other words than the language model's own and
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
    """How many of the last words are marks that neither a report nor the chat template can hold.

    Gemma's tokenizer ends with the mark of an image, for which its text models have no embedding.
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
    from radweave.base.hashes import sha256_file, sha256_json
    from radweave.base.storage import writing

    with tempfile.TemporaryDirectory() as folder, writing(Path(folder)):
        save_tokenizer(tokenizer, Path(folder))
        return sha256_json({path.name: sha256_file(path) for path in sorted(Path(folder).iterdir())})


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of a report's text: words that look like a special token are words, and end no report."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    return ids


def encode_all(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """What ``encode`` gives of each text, many at a time: a fast tokenizer then works on all cores."""
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
