"""LoRA: the same numbers as peft's own wrapper, and only adapters train."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from radweave.core.errors import InputError
from radweave.methods.stage import apply_finetune
from radweave.nn.language_model import LoraConfig, NoLoraConfig, has_lora

IDS = torch.tensor([[3, 4, 5, 6]])


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
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
    ours = LoraConfig(rank=4, alpha=8).apply(build())  # type: ignore[operator]
    theirs = get_peft_model(build(), PeftConfig(r=4, lora_alpha=8, lora_dropout=0.1))  # type: ignore[operator]
    before = build()(IDS).logits  # type: ignore[operator]
    torch.testing.assert_close(ours(IDS).logits, before, atol=0, rtol=0)
    set_adapters(ours)
    set_adapters(theirs)
    with torch.no_grad():
        left, right = ours.eval()(IDS).logits, theirs.eval()(IDS).logits
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


def test_a_part_without_adapters_cannot_train_them() -> None:
    parts = nn.Module()
    parts.add_module("language_model", NoLoraConfig().apply(llama()))
    assert not has_lora(parts)
    with pytest.raises(InputError, match=r"model\.language_model\.lora=lora"):
        apply_finetune(parts, {"language_model": "lora"})


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(InputError, match="LoRA cannot be applied"):
        LoraConfig(targets=("no_such_layer",)).apply(llama())
