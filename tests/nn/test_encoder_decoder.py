"""BERT with cross-attention: against an uncached loop, alone and in batches, from nothing and from a checkpoint."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertModel, GPT2Config, GPT2LMHeadModel

from radweave.core.errors import InputError
from radweave.methods.stage import apply_finetune
from radweave.nn.decoding import DecodingConfig
from radweave.nn.encoder_decoder import BertDecoderConfig, CrossAttentionLanguageModel, PretrainedBertDecoderConfig
from radweave.nn.language_model import LoraConfig

IDS = {"bos_id": 1, "eos_id": 2, "pad_id": 0}
VOCAB, WIDTH, EOS, PAD = 50, 32, 2, 0
# Two orders of summation of float32 attention differ by about 1e-6; losses here are near 4.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def decoder() -> CrossAttentionLanguageModel:
    torch.manual_seed(0)
    return BertDecoderConfig(hidden_size=WIDTH, num_layers=2).build(vocab_size=VOCAB, **IDS).eval()


def padded(lengths: list[int], seed: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Random embeddings of these lengths with a mask."""
    generator = torch.Generator().manual_seed(seed)
    size = max(lengths)
    values, mask = torch.zeros(len(lengths), size, WIDTH), torch.zeros(len(lengths), size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        place = slice(size - length, size) if left else slice(0, length)
        values[row, place] = torch.randn(length, WIDTH, generator=generator)
        mask[row, place] = True
    return values, mask


def test_the_loss_equals_the_librarys_with_shifted_labels(decoder: CrossAttentionLanguageModel) -> None:
    memory, memory_mask = padded([5, 5], 0, left=False)
    ids = torch.tensor([[7, 8, 9, EOS], [11, 12, 13, EOS]])
    whole = torch.cat([torch.full((2, 1), IDS["bos_id"]), ids], dim=1)
    reference = decoder.model(input_ids=whole, labels=whole, encoder_hidden_states=memory).loss
    actual = decoder.loss(memory, memory_mask, None, None, ids, ids)
    torch.testing.assert_close(actual, reference, atol=TOLERANCE, rtol=0)


def test_padding_of_memory_prompt_and_report_does_not_change_a_row(decoder: CrossAttentionLanguageModel) -> None:
    memory, memory_mask = padded([6, 3], 0, left=False)
    prefix, prefix_mask = padded([4, 2], 1, left=True)
    ids = torch.tensor([[7, 8, 9, 10, EOS], [11, EOS, PAD, PAD, PAD]])
    labels = torch.tensor([[7, 8, 9, 10, EOS], [11, EOS, -100, -100, -100]])
    together = decoder.loss(memory, memory_mask, prefix, prefix_mask, ids, labels)
    first = decoder.loss(memory[:1], memory_mask[:1], prefix[:1], None, ids[:1], labels[:1])
    second = decoder.loss(memory[1:, :3], memory_mask[1:, :3], prefix[1:, 2:], None, ids[1:, :2], labels[1:, :2])
    torch.testing.assert_close(together, (5 * first + 2 * second) / 7, atol=TOLERANCE, rtol=0)


def test_a_label_of_weight_three_counts_as_three(decoder: CrossAttentionLanguageModel) -> None:
    memory, memory_mask = padded([6, 3], 0, left=False)
    ids = torch.tensor([[7, 8, EOS], [11, EOS, PAD]])
    labels = torch.tensor([[7, 8, EOS], [11, EOS, -100]])
    given = memory, memory_mask, None, None, ids
    only_second = decoder.loss(*given, labels, torch.tensor([[0.0, 1, 0]] * 2))
    plain, weighed = decoder.loss(*given, labels), decoder.loss(*given, labels, torch.tensor([[1.0, 3, 1]] * 2))
    torch.testing.assert_close(weighed, (5 * plain + 2 * 2 * only_second) / 9, atol=TOLERANCE, rtol=0)


def test_greedy_generation_equals_an_uncached_loop(decoder: CrossAttentionLanguageModel) -> None:
    memory, memory_mask = padded([6], 0, left=False)
    prefix, _ = padded([3], 1, left=True)
    ids, log_probs = decoder.generate(memory, memory_mask, prefix, None, DecodingConfig(max_new_tokens=10))
    embeds = torch.cat([prefix, decoder.embed(torch.tensor([[IDS["bos_id"]]]))], dim=1)
    expected, expected_log_probs = [], []
    for _ in range(10):
        logits = decoder.model(inputs_embeds=embeds, encoder_hidden_states=memory, use_cache=False).logits[0, -1]
        token = int(logits.argmax())
        if token == EOS:
            break
        expected.append(token)
        expected_log_probs.append(float(logits.log_softmax(-1)[token].detach()))
        embeds = torch.cat([embeds, decoder.embed(torch.tensor([[token]]))], dim=1)
    assert expected
    assert ids[0] == expected
    assert log_probs[0] == pytest.approx(expected_log_probs, abs=1e-4)


@pytest.mark.parametrize("with_prefix", [False, True])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_row_generates_the_same_alone_and_in_a_padded_batch(
    decoder: CrossAttentionLanguageModel, num_beams: int, with_prefix: bool
) -> None:
    memory, memory_mask = padded([6, 3, 4], 0, left=False)
    prefix, prefix_mask = padded([1, 4, 2], 1, left=True) if with_prefix else (None, None)
    decoding = DecodingConfig(num_beams=num_beams, max_new_tokens=12)
    together, _ = decoder.generate(memory, memory_mask, prefix, prefix_mask, decoding)
    for row, (tokens, prompts) in enumerate(zip([6, 3, 4], [1, 4, 2], strict=True)):
        own = None if prefix is None else prefix[row : row + 1, 4 - prompts :]
        alone, _ = decoder.generate(
            memory[row : row + 1, :tokens], memory_mask[row : row + 1, :tokens], own, None, decoding
        )
        assert alone[0] == together[row]


def test_the_decoder_learns_to_write_the_memory() -> None:
    torch.manual_seed(0)
    decoder = BertDecoderConfig(hidden_size=WIDTH, num_layers=2, dropout=0.0).build(vocab_size=VOCAB, **IDS)
    memory, mask = padded([4, 4], 3, left=False)
    ids = torch.tensor([[7, 8, 9, 10, EOS], [7, 8, 12, 13, EOS]])
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    for _ in range(80):
        loss = decoder.loss(memory, mask, None, None, ids, ids)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    decoder.eval()
    written, _ = decoder.generate(memory, mask, None, None, DecodingConfig(max_new_tokens=8))
    assert written == [[7, 8, 9, 10], [7, 8, 12, 13]]


def test_token_dropout_blanks_inputs_in_training_only() -> None:
    torch.manual_seed(0)
    config = BertDecoderConfig(hidden_size=WIDTH, num_layers=1, dropout=0.0, token_dropout=0.5)
    decoder = config.build(vocab_size=VOCAB, **IDS)
    memory, mask = padded([4], 3, left=False)
    ids = torch.tensor([[7, 8, 9, 10, EOS]])

    def losses() -> set[float]:
        return {float(decoder.loss(memory, mask, None, None, ids, ids).detach()) for _ in range(8)}

    decoder.eval()
    assert len(losses()) == 1
    decoder.train()
    assert len(losses()) > 1


def test_a_report_longer_than_the_positions_is_refused_by_name(decoder: CrossAttentionLanguageModel) -> None:
    memory, mask = padded([4], 3, left=False)
    with pytest.raises(InputError, match=r"decoding\.max_new_tokens.*513.*at most 512"):
        decoder.generate(memory, mask, None, None, DecodingConfig(max_new_tokens=512))


def write_bert(folder: Path, *, head: bool = True) -> None:
    """An encoder in the published format."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    (BertForMaskedLM(config) if head else BertModel(config)).save_pretrained(folder)


def test_an_encoder_checkpoint_gets_new_cross_attention_and_says_so(tmp_path: Path) -> None:
    write_bert(tmp_path)
    with pytest.warns(UserWarning, match=r"start from nothing.*crossattention.*must train them"):
        decoder = PretrainedBertDecoderConfig(path=str(tmp_path)).build(vocab_size=VOCAB, **IDS)
    published = BertForMaskedLM.from_pretrained(tmp_path).state_dict()
    actual = decoder.model.state_dict()
    for name, value in published.items():
        assert torch.equal(actual[name], value), name
    assert decoder.untrained == {f"model.{name}" for name in actual if "crossattention" in name}
    # A decoder that was saved whole is whole: no warning.
    decoder.model.save_pretrained(tmp_path / "decoder")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        repeated = PretrainedBertDecoderConfig(path=str(tmp_path / "decoder")).build(vocab_size=VOCAB, **IDS)
    assert repeated.untrained == frozenset()


def test_a_checkpoint_without_a_head_gets_a_new_one(tmp_path: Path) -> None:
    write_bert(tmp_path, head=False)
    with pytest.warns(UserWarning, match="start from nothing"):
        decoder = PretrainedBertDecoderConfig(path=str(tmp_path)).build(vocab_size=VOCAB, **IDS)
    assert any("cls.predictions.transform" in name for name in decoder.untrained)


def test_lora_trains_adapters_and_weights_missing_in_the_checkpoint(tmp_path: Path) -> None:
    write_bert(tmp_path)
    config = PretrainedBertDecoderConfig(path=str(tmp_path), lora=LoraConfig(rank=2, targets=("query", "value")))
    with pytest.warns(UserWarning, match="start from nothing"):
        decoder = config.build(vocab_size=VOCAB, **IDS)
    model = nn.Module()
    model.language_model = decoder
    apply_finetune(model, {"language_model": "lora"})
    trained = {name for name, parameter in decoder.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name or "crossattention" in name for name in trained)
    assert {name for name, _ in decoder.named_parameters() if "crossattention" in name} <= trained


def test_non_bert_checkpoints_and_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot load a language model"):
        PretrainedBertDecoderConfig(path=str(tmp_path / "none")).build(vocab_size=VOCAB, **IDS)
    GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(InputError, match=r"model_type.*gpt2.*bert"):
        PretrainedBertDecoderConfig(path=str(tmp_path / "gpt2")).build(vocab_size=VOCAB, **IDS)
