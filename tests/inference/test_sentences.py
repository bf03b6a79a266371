"""A draft's sentences with their confidence, whatever kind of tokenizer the language model brings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.engine.drafts import Drafter

TEXT = "the heart is normal. size 1.3 cm. no effusion is seen."
SENTENCES = ["the heart is normal.", "size 1.3 cm.", "no effusion is seen."]


def byte_level() -> PreTrainedTokenizerBase:
    """GPT-2's kind: a word's space belongs to its token."""
    return BpeTokenizerConfig(vocab_size=300).build([TEXT] * 4)


def bytes_alone() -> PreTrainedTokenizerBase:
    """A vocabulary so small that a space is a token of its own."""
    return BpeTokenizerConfig(vocab_size=300).build(["xy"])


def metaspace() -> PreTrainedTokenizerBase:
    """Llama's kind: decoding one token by itself drops its space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        [TEXT] * 4, trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", "</s>"], show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def word_piece() -> PreTrainedTokenizerBase:
    """BERT's kind: spaces stand around every token that does not continue a word."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[PAD]"], show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")


# A word-piece tokenizer writes "1. 3": where a number ends cannot be told from its text.
WITHOUT_NUMBER = "the heart is normal. no effusion is seen."


@pytest.mark.parametrize(
    ("kind", "text"), [(byte_level, TEXT), (bytes_alone, TEXT), (metaspace, TEXT), (word_piece, WITHOUT_NUMBER)]
)
def test_a_draft_is_cut_into_its_sentences(kind: Callable[[], PreTrainedTokenizerBase], text: str) -> None:
    tokenizer = kind()
    ids = tokenizer.encode(text, add_special_tokens=False)
    drafter = Drafter(model=None, tokenizer=tokenizer, decoding=None, modality="xray")  # type: ignore[arg-type]
    sentences = drafter._evidence(ids, {"token_log_probs": [math.log(0.5)] * len(ids)})["sentences"]
    expected = [sentence for sentence in SENTENCES if sentence in text]
    assert [sentence["text"].replace(" .", ".") for sentence in sentences] == expected
    assert all(sentence["confidence"] == pytest.approx(0.5, abs=1e-4) for sentence in sentences)
