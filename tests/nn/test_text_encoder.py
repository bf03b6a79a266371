"""Text encoders: the fitted one, and the pretrained one on a small checkpoint in the real layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, BertTokenizerFast, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from radweave.core.errors import InputError
from radweave.nn.text_encoder import LsaTextEncoderConfig, PretrainedTextEncoderConfig

TEXTS = [
    "The heart is normal. No effusion.",
    "The heart is enlarged.",
    "There is a small left effusion.",
    "No effusion or pneumothorax. The heart is normal.",
]


def test_lsa_ranks_a_similar_text_above_a_different_one() -> None:
    encoder = LsaTextEncoderConfig(width=4, num_buckets=512).build()
    encoder.fit(TEXTS)
    vectors = encoder.encode([*TEXTS, "The heart is normal. No effusion is seen."])
    assert torch.allclose(vectors.norm(dim=1), torch.ones(5), atol=1e-5)
    similarity = vectors @ vectors[4]
    assert similarity.argmax() in (0, 4)
    assert similarity[0] > similarity[1]


def test_lsa_is_the_same_in_every_batch_and_every_fit() -> None:
    first, second = (LsaTextEncoderConfig(width=3, num_buckets=512).build() for _ in range(2))
    for encoder in (first, second):
        encoder.fit(TEXTS)
    assert torch.equal(first.projection, second.projection)
    together = first.encode(TEXTS)
    for row, text in enumerate(TEXTS):
        assert torch.allclose(first.encode([text])[0], together[row], atol=1e-6)


def test_a_text_without_a_known_word_is_zero_and_no_text_is_refused() -> None:
    encoder = LsaTextEncoderConfig(width=3, num_buckets=4096).build()
    encoder.fit(TEXTS)
    assert torch.equal(encoder.encode([""]), torch.zeros(1, 3))
    with pytest.raises(InputError, match="no text"):
        encoder.fit(["", ""])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "heart", "is", "normal", "enlarged", "no", "."]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(str(folder))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    BertModel(config).save_pretrained(str(folder))
    return folder


def test_the_pretrained_one_averages_over_words_not_padding(bert: Path) -> None:
    encoder = PretrainedTextEncoderConfig(path=str(bert)).build()
    assert encoder.width == 16
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    texts = ["the heart is normal.", "heart"]
    together = encoder.train().encode(texts)
    for row, text in enumerate(texts):
        assert torch.allclose(encoder.encode([text])[0], together[row], atol=1e-6)
    ids = encoder.tokenizer("heart", return_tensors="pt")
    hidden = encoder.model.eval()(**ids).last_hidden_state
    assert torch.allclose(hidden[0].mean(0), together[1], atol=1e-6)


def test_a_text_encoder_is_restored_from_a_run(bert: Path, tmp_path: Path) -> None:
    encoder = PretrainedTextEncoderConfig(path=str(bert)).build()
    encoder.architecture.save_pretrained(str(tmp_path))
    encoder.tokenizer.save_pretrained(str(tmp_path))
    repeated = PretrainedTextEncoderConfig(path="/nowhere").build(saved=tmp_path)
    repeated.load_state_dict(encoder.state_dict())
    assert torch.equal(repeated.encode(["no heart"]), encoder.encode(["no heart"]))


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load a text encoder"):
        PretrainedTextEncoderConfig(path=str(tmp_path / "none")).build()


def test_a_language_model_encodes_too_and_needs_no_padding_token(tmp_path: Path) -> None:
    """Table VIII of AM-MRG; Llama's tokenizer cannot pad."""
    words = {word: number for number, word in enumerate(("<unk>", "<s>", "</s>", "no", "effusion", "heart"))}
    vocabulary = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, unk_token="<unk>", eos_token="</s>")
    assert tokenizer.pad_token is None
    tokenizer.save_pretrained(str(tmp_path))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    LlamaModel(LlamaConfig(vocab_size=len(words), **sizes)).save_pretrained(str(tmp_path))
    encoder = PretrainedTextEncoderConfig(path=str(tmp_path)).build()
    together = encoder.encode(["no effusion heart no effusion", "heart"])
    torch.testing.assert_close(together[1], encoder.encode(["heart"])[0], rtol=0, atol=1e-5)
    assert encoder.width == 16
