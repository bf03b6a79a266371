"""Any causal language model of transformers: seventeen families as small checkpoints in the real layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from radweave.core.errors import InputError
from radweave.data.tokenizer import BpeTokenizerConfig, spare_words
from radweave.nn.decoding import DecodingConfig, supports_slots
from radweave.nn.language_model import CausalLanguageModel, PretrainedLanguageModelConfig
from tests.checkpoints import (
    BOS,
    EOS,
    LANGUAGE_MODELS,
    PAD,
    POSITIONS,
    TEXT,
    VOCAB,
    write_encoder,
    write_language_model,
)

PROMPT, NEW = 12, 8


def load(folder: Path, *, vocab_size: int = VOCAB, spare: int = 0, saved: Path | None = None) -> CausalLanguageModel:
    record = PretrainedLanguageModelConfig(path=str(folder))
    model = record.build(vocab_size=vocab_size, spare=spare, bos_id=BOS, eos_id=EOS, pad_id=PAD, saved=saved)
    return model.eval()


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@torch.no_grad()
def test_embeddings_give_the_checkpoints_own_numbers_behind_any_padding(name: str, tmp_path: Path) -> None:
    own = write_language_model(name, tmp_path, tokenizer=False)
    model = load(tmp_path)
    ids = torch.randint(3, VOCAB, (1, PROMPT + NEW), generator=torch.Generator().manual_seed(1))
    logits = own(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    torch.testing.assert_close(model.model(inputs_embeds=model.embed(ids)).logits, logits, atol=1e-5, rtol=1e-5)

    # A longer row beside it pads this one on the left, beyond the windows of those that slide.
    text = ids[:, PROMPT:]
    prefix, mask = torch.randn(2, PROMPT + 5, model.width), torch.ones(2, PROMPT + 5, dtype=torch.bool)
    prefix[0, :5], prefix[0, 5:], mask[0, :5] = 0.0, model.embed(ids[0, :PROMPT]), False
    both = model.loss(prefix, mask, text.expand(2, -1), torch.cat([text, torch.full_like(text, -100)]))
    torch.testing.assert_close(both, cross_entropy(logits[0, PROMPT - 1 : -1], text[0]), atol=1e-5, rtol=1e-5)

    written, _ = model.generate(prefix, mask, DecodingConfig(max_new_tokens=NEW))
    sequence = ids[:, :PROMPT]
    for _ in range(NEW):
        best = own(input_ids=sequence, attention_mask=torch.ones_like(sequence)).logits[:, -1:].argmax(dim=-1)
        if int(best) == EOS:
            break
        sequence = torch.cat([sequence, best], dim=1)
    assert written[0] == sequence[0, PROMPT:].tolist()

    # In rows of fixed shape, as above, and with transformers' own cache.
    assert supports_slots(model.architecture)
    beams = DecodingConfig(max_new_tokens=NEW, num_beams=2, repetition_penalty=1.5, length_penalty=2.0)
    appending, _ = model.generate(prefix, mask, beams.model_copy(update={"cache": "growing"}))
    assert model.generate(prefix, mask, beams)[0] == appending


@pytest.mark.parametrize("name", ["gemma3 with images", "qwen2_vl"])
def test_only_the_text_part_of_a_multimodal_checkpoint_is_kept(name: str, tmp_path: Path) -> None:
    write_language_model(name, tmp_path / "checkpoint", tokenizer=False)
    model = load(tmp_path / "checkpoint")
    assert not any("vision" in part or "visual" in part for part, _ in model.named_parameters())
    model.architecture.save_pretrained(str(tmp_path / "run"))
    restored = load(tmp_path / "gone", saved=tmp_path / "run")
    restored.load_state_dict(model.state_dict(), strict=True)
    ids = torch.arange(3, 9)[None]
    torch.testing.assert_close(restored.model(ids).logits, model.model(ids).logits, atol=0, rtol=0)


def _bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**TEXT))


def _t5() -> Any:
    return transformers.T5Model(
        transformers.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


def _both_ways() -> Any:
    model = LANGUAGE_MODELS["gemma3"]()
    model.config.use_bidirectional_attention = True
    return model


@pytest.mark.parametrize("made", [_bert, _t5, _both_ways])
def test_models_without_causal_masks_are_refused(made: Callable[[], Any], tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=r"language_model\.path': not a causal language model.*a decoder such as Llama"
    ):
        load(tmp_path)


def test_a_vision_model_is_no_language_model_and_too_many_words_are_refused_without_weights(tmp_path: Path) -> None:
    write_encoder("dinov2", tmp_path / "images")
    with pytest.raises(InputError, match=r"not a causal language model \(got dinov2"):
        load(tmp_path / "images")
    write_language_model("llama", tmp_path / "words")
    weights = tmp_path / "words" / "model.safetensors"
    weights.write_bytes(b"not looked at")
    with pytest.raises(InputError, match=rf"{VOCAB + 1} tokens.*at most {VOCAB}"):
        load(tmp_path / "words", vocab_size=VOCAB + 1)


def test_marks_at_the_end_that_no_text_holds_need_no_embedding(tmp_path: Path) -> None:
    tokenizer = BpeTokenizerConfig(vocab_size=300).build([])
    assert spare_words(tokenizer) == 0
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>", "<image>"]})
    assert spare_words(tokenizer) == 2
    tokenizer.chat_template = "<turn>{{ messages[0].content }}"
    assert spare_words(tokenizer) == 1
    write_language_model("gemma3", tmp_path)
    assert load(tmp_path, vocab_size=VOCAB + 1, spare=1).architecture.vocab_size == VOCAB


@pytest.mark.parametrize("name", ["gpt2", "opt", "llama"])
def test_more_tokens_than_positions_are_refused(name: str, tmp_path: Path) -> None:
    write_language_model(name, tmp_path, tokenizer=False)
    model = load(tmp_path)
    prefix, mask = torch.zeros(1, POSITIONS - 4, model.width), torch.ones(1, POSITIONS - 4, dtype=torch.bool)
    ids = torch.full((1, 5), 7)
    with pytest.raises(InputError, match=rf"data\.max_tokens.*{POSITIONS + 1} tokens.*at most {POSITIONS}"):
        model.loss(prefix, mask, ids, ids)
    generate = partial(model.generate, prefix, mask)
    with pytest.raises(InputError, match=r"decoding\.max_new_tokens"):
        generate(DecodingConfig(max_new_tokens=5))
    assert len(generate(DecodingConfig(max_new_tokens=4))[0]) == 1
