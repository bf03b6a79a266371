"""The language model against transformers' own loss and generation, with padding and adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel
from transformers import LlamaConfig as TransformersLlamaConfig

from radweave.core.errors import InputError
from radweave.methods.stage import apply_finetune
from radweave.nn.decoding import DecodingConfig, trim
from radweave.nn.language_model import (
    CausalLanguageModel,
    LlamaConfig,
    LoraConfig,
    NoLoraConfig,
    PretrainedLanguageModelConfig,
    has_lora,
    position_ids,
)

VOCAB, PAD, BOS, EOS = 50, 0, 1, 2
# Two orders of summation of float32 attention differ by about 1e-6; losses here are near 4.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def language_model() -> CausalLanguageModel:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, num_layers=2, num_heads=4)
    return config.build(vocab_size=VOCAB, bos_id=BOS, eos_id=EOS, pad_id=PAD).eval()


def random_prefix(lengths: list[int], width: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    size = max(lengths)
    prefix, mask = torch.zeros(len(lengths), size, width), torch.zeros(len(lengths), size, dtype=torch.bool)
    for row, length in enumerate(lengths):
        prefix[row, size - length :] = torch.randn(length, width, generator=generator)
        mask[row, size - length :] = True
    return prefix, mask


def test_the_loss_equals_the_librarys_on_the_whole_sequence(language_model: CausalLanguageModel) -> None:
    prefix, mask = random_prefix([5, 5])
    ids = torch.tensor([[7, 8, 9, EOS], [11, 12, 13, EOS]])
    own = language_model.loss(prefix, mask, ids, ids)
    embeds = torch.cat([prefix, language_model.embed(ids)], dim=1)
    labels = torch.cat([torch.full((2, 5), -100), ids], dim=1)
    reference = language_model.model(inputs_embeds=embeds, labels=labels).loss
    torch.testing.assert_close(own, reference, atol=TOLERANCE, rtol=0)


def test_padding_on_both_sides_does_not_change_a_rows_loss(language_model: CausalLanguageModel) -> None:
    prefix, mask = random_prefix([6, 3])
    ids = torch.tensor([[7, 8, 9, 10, EOS], [11, EOS, PAD, PAD, PAD]])
    labels = torch.tensor([[7, 8, 9, 10, EOS], [11, EOS, -100, -100, -100]])
    together = language_model.loss(prefix, mask, ids, labels)
    first = language_model.loss(prefix[:1], mask[:1], ids[:1], labels[:1])
    second = language_model.loss(prefix[1:, 3:], mask[1:, 3:], ids[1:, :2], labels[1:, :2])
    torch.testing.assert_close(together, (5 * first + 2 * second) / 7, atol=TOLERANCE, rtol=0)


def test_weights_make_it_the_weighted_mean_of_the_tokens_losses(language_model: CausalLanguageModel) -> None:
    prefix, mask = random_prefix([6, 3])
    ids = torch.tensor([[7, 8, 9, EOS], [11, EOS, PAD, PAD]])
    labels = torch.tensor([[7, 8, 9, EOS], [11, EOS, -100, -100]])
    weights = torch.tensor([[1.0, 3, 3, 1], [2, 1, 5, 5]])
    logits = language_model.model(
        inputs_embeds=torch.cat([prefix, language_model.embed(ids)], dim=1),
        attention_mask=torch.cat([mask, labels != -100], dim=1).long(),
        position_ids=position_ids(torch.cat([mask, labels != -100], dim=1)),
    ).logits
    apart = [
        float(weights[row, place] * -logits[row, 5 + place].log_softmax(-1)[label])
        for row, labelled in enumerate(labels.tolist())
        for place, label in enumerate(labelled)
        if label != -100
    ]
    weighed = float(language_model.loss(prefix, mask, ids, labels, weights))
    assert weighed == pytest.approx(sum(apart) / (8 + 3), abs=TOLERANCE)
    plain = language_model.loss(prefix, mask, ids, labels)
    assert weighed != pytest.approx(float(plain), abs=1e-3)
    for same in (torch.ones(2, 4), torch.full((2, 4), 4.0)):
        torch.testing.assert_close(language_model.loss(prefix, mask, ids, labels, same), plain, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "decoding", [DecodingConfig(max_new_tokens=12), DecodingConfig(num_beams=3, max_new_tokens=12)]
)
def test_a_row_generates_the_same_alone_and_in_a_padded_batch(
    language_model: CausalLanguageModel, decoding: DecodingConfig
) -> None:
    prefix, mask = random_prefix([6, 3, 4])
    together, _ = language_model.generate(prefix, mask, decoding)
    for row, length in enumerate([6, 3, 4]):
        alone, _ = language_model.generate(
            prefix[row : row + 1, 6 - length :], mask[row : row + 1, 6 - length :], decoding
        )
        assert alone[0] == together[row]


def test_greedy_generation_equals_an_uncached_loop(language_model: CausalLanguageModel) -> None:
    prefix, mask = random_prefix([4])
    ids, log_probs = language_model.generate(prefix, mask, DecodingConfig(max_new_tokens=10))
    embeds, expected, expected_log_probs = prefix, [], []
    for _ in range(10):
        logits = language_model.model(inputs_embeds=embeds).logits[0, -1].detach()
        token = int(logits.argmax())
        if token == EOS:
            break
        expected.append(token)
        expected_log_probs.append(float(logits.log_softmax(-1)[token]))
        embeds = torch.cat([embeds, language_model.embed(torch.tensor([[token]]))], dim=1)
    assert ids[0] == expected
    assert log_probs[0] == pytest.approx(expected_log_probs, abs=1e-4)


def test_the_text_loss_is_the_librarys_after_the_begin_token(language_model: CausalLanguageModel) -> None:
    ids = torch.tensor([[7, 8, 9, EOS]])
    whole = torch.tensor([[BOS, 7, 8, 9, EOS]])
    reference = language_model.model(input_ids=whole, labels=whole).loss
    torch.testing.assert_close(language_model.text_loss(ids, ids), reference, atol=TOLERANCE, rtol=0)


def test_the_end_token_and_what_follows_are_cut() -> None:
    sequences = torch.tensor([[5, 6, EOS, PAD], [7, 8, 9, 10]])
    ids, log_probs = trim(sequences, torch.arange(8.0).view(2, 4), EOS)
    assert ids == [[5, 6], [7, 8, 9, 10]]
    assert log_probs == [[0.0, 1.0], [4.0, 5.0, 6.0, 7.0]]


def test_sampling_is_seeded(language_model: CausalLanguageModel) -> None:
    prefix, mask = random_prefix([4])
    draws = [
        language_model.generate(prefix, mask, DecodingConfig(do_sample=True, max_new_tokens=12, seed=seed))[0]
        for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_token_dropout_blanks_inputs_in_training_only() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, num_layers=1, num_heads=4, token_dropout=0.5)
    model = config.build(vocab_size=VOCAB, bos_id=BOS, eos_id=EOS, pad_id=PAD)
    prefix, mask = random_prefix([3])
    ids = torch.tensor([[7, 8, 9, 10, EOS]])
    model.eval()
    with torch.no_grad():
        assert float(model.loss(prefix, mask, ids, ids)) == float(model.loss(prefix, mask, ids, ids))
    model.train()
    losses = {float(model.loss(prefix, mask, ids, ids).detach()) for _ in range(8)}
    assert len(losses) > 1, "no other source of chance is in this model"


def test_position_ids_count_present_tokens() -> None:
    mask = torch.tensor([[False, False, True, True], [True, True, True, False]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 2]]


def test_a_checkpoint_on_disk_gives_the_same_logits(language_model: CausalLanguageModel, tmp_path: Path) -> None:
    language_model.model.save_pretrained(tmp_path)
    loaded = PretrainedLanguageModelConfig(path=str(tmp_path)).build(
        vocab_size=VOCAB, bos_id=BOS, eos_id=EOS, pad_id=PAD
    )
    ids = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(loaded.model.eval()(ids).logits, language_model.model(ids).logits, atol=0, rtol=0)


def test_a_missing_checkpoint_and_a_foreign_tokenizer_are_refused(
    language_model: CausalLanguageModel, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="cannot load a language model"):
        PretrainedLanguageModelConfig(path=str(tmp_path / "none")).build(vocab_size=9, bos_id=1, eos_id=2, pad_id=0)
    language_model.model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="does not belong to this language model"):
        PretrainedLanguageModelConfig(path=str(tmp_path)).build(vocab_size=VOCAB + 1, bos_id=1, eos_id=2, pad_id=0)


IDS = torch.tensor([[3, 4, 5, 6]])


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        TransformersLlamaConfig(
            vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2,
        )
    ).eval()  # fmt: skip


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2)).eval()


def set_adapters(model: nn.Module) -> None:
    """Give the adapters values that matter; B starts at zero."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("build", [llama, gpt2])
def test_it_equals_pefts_own_wrapper(build: object) -> None:
    own = LoraConfig(rank=4, alpha=8).apply(build())  # type: ignore[operator]
    reference = get_peft_model(build(), PeftConfig(r=4, lora_alpha=8, lora_dropout=0.1))  # type: ignore[operator]
    before = build()(IDS).logits  # type: ignore[operator]
    torch.testing.assert_close(own(IDS).logits, before, atol=0, rtol=0)
    set_adapters(own)
    set_adapters(reference)
    with torch.no_grad():
        left, right = own.eval()(IDS).logits, reference.eval()(IDS).logits
    # The same operations in the same order; 1e-6 is float32's resolution at these sizes.
    torch.testing.assert_close(left, right, atol=1e-6, rtol=0)
    assert (left - before).abs().max() > 0.1


def test_only_adapters_train_and_their_count_follows_from_the_rank() -> None:
    parts = nn.Module()
    parts.add_module("language_model", LoraConfig(rank=4, targets=("q_proj", "v_proj")).apply(llama()))
    apply_finetune(parts, {"language_model": "lora"})
    trainable = {name: p.numel() for name, p in parts.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trainable)
    # Two layers, two maps, A (4 x 16) and B (16 x 4) each.
    assert sum(trainable.values()) == 2 * 2 * 2 * 4 * 16


def test_lora_training_needs_adapters() -> None:
    parts = nn.Module()
    parts.add_module("language_model", NoLoraConfig().apply(llama()))
    assert not has_lora(parts)
    with pytest.raises(InputError, match=r"model\.language_model\.lora=lora"):
        apply_finetune(parts, {"language_model": "lora"})


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(InputError, match="LoRA cannot be applied"):
        LoraConfig(targets=("no_such_layer",)).apply(llama())
