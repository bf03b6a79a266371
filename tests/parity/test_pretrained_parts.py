"""Language models and encoders from checkpoints in the real format: train, report, and restore without them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    SwinConfig,
    SwinModel,
)

from conftest import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES
from radweave.data.dataset import Dataset
from radweave.data.tokenizer import BpeTokenizerConfig, save_tokenizer
from radweave.errors import InputError
from radweave.nn.prompt import PromptTemplate
from radweave.runs import restore, train

SHAPE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": lambda size: LlamaForCausalLM(LlamaConfig(vocab_size=size, **SHAPE)),
    "phi3": lambda size: Phi3ForCausalLM(Phi3Config(vocab_size=size, pad_token_id=0, **SHAPE)),
    "qwen2": lambda size: Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **SHAPE)),
    "gpt2": lambda size: GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=4)),
}


def write_checkpoint(folder: Path, family: str) -> Path:
    """A tiny random checkpoint with tokenizer, in several shards as large ones are."""
    torch.manual_seed(0)
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(list(TOY_REPORTS.values()) * 3)
    # As in published checkpoints, the embedding has a few rows more than the tokenizer has words.
    FAMILIES[family](len(tokenizer) + 8).save_pretrained(folder, max_shard_size="40KB")
    save_tokenizer(tokenizer, folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


LORA_TARGETS = {"phi3": "[qkv_proj, o_proj]"}
"""Where peft knows no default."""


def overrides_for(checkpoint: Path, lora: str, targets: str = "null") -> list[str]:
    sizes = [size for size in TOY_SIZES["baseline"] if "language_model" not in size]
    adapters = f"{{kind: lora, targets: {targets}}}" if lora == "lora" else "{kind: none}"
    return [
        *(option for option in TOY_OVERRIDES if "tokenizer" not in option),
        *sizes,
        f"model.language_model={{kind: pretrained, path: {checkpoint}, lora: {adapters}}}",
        f"data.tokenizer={{kind: pretrained, path: {checkpoint}}}",
        f"stages.report.finetune.language_model={'lora' if lora == 'lora' else 'frozen'}",
        "model.prompt='Human: <Img>{image}</Img> Report.'",
        "stages.report.epochs=2",
    ]


@pytest.mark.parametrize("lora", ["none", "lora"], ids=["frozen", "lora"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_checkpoint_trains_reports_and_restores_without_its_folder(
    family: str, lora: str, toy_dataset: Dataset, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", family)
    before = {
        name: value.clone() for name, value in FAMILIES[family](300).from_pretrained(checkpoint).state_dict().items()
    }
    run = train(
        "baseline",
        toy_dataset.path,
        tmp_path / "run",
        overrides=overrides_for(checkpoint, lora, LORA_TARGETS.get(family, "null")),
    )
    images = [toy_dataset.image_path("images/1_0.png")]
    report = restore(run).predictor().report(images)
    shutil.rmtree(checkpoint)
    restored = restore(run)
    assert restored.predictor().report(images) == report
    # The language model's own weights are as they were; with LoRA its adapters have moved.
    after = restored.model.language_model.model.state_dict()  # type: ignore[union-attr]
    plain = {name.replace(".base_layer", ""): value for name, value in after.items()}
    for name, value in before.items():
        assert torch.equal(plain[name], value), name
    adapters = [value for name, value in after.items() if "lora_B" in name]
    assert bool(adapters) == (lora == "lora")
    assert all(bool(value.abs().sum() > 0) for value in adapters)


def test_a_missing_shard_is_named(toy_dataset: Dataset, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama")
    shard = sorted(checkpoint.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(InputError, match=f"cannot load a language model.*{shard.name}"):
        train("baseline", toy_dataset.path, tmp_path / "run", overrides=overrides_for(checkpoint, "none"))


def test_an_encoder_checkpoint_restores_without_its_folder(toy_dataset: Dataset, tmp_path: Path) -> None:
    config = SwinConfig(image_size=32, num_channels=3, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=2)
    SwinModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "swin")
    overrides = [
        *TOY_OVERRIDES,
        *(size for size in TOY_SIZES["baseline"] if "vision_encoder" not in size),
        f"model.vision_encoder={{kind: swin, path: {tmp_path / 'swin'}}}",
        "stages.report.epochs=1",
    ]
    run = train("baseline", toy_dataset.path, tmp_path / "run", overrides=overrides)
    images = [toy_dataset.image_path("images/1_0.png")]
    report = restore(run).predictor().report(images)
    shutil.rmtree(tmp_path / "swin")
    assert restore(run).predictor().report(images) == report


def test_the_chat_format_puts_the_prompt_into_the_tokenizers_template() -> None:
    tokenizer = BpeTokenizerConfig(vocab_size=300).build(["Report."])
    with pytest.raises(InputError, match="no chat template"):
        PromptTemplate.for_tokenizer("{image} Report.", tokenizer, "chat", slots=("image",))
    tokenizer.chat_template = "{% for m in messages %}<s>user: {{ m['content'] }}\n{% endfor %}assistant:"
    template = PromptTemplate.for_tokenizer("{image} Report.", tokenizer, "chat", slots=("image",))
    before, slot, after = template.pieces
    assert isinstance(before, tuple)
    assert before[0] == tokenizer.bos_token_id
    assert tokenizer.decode(list(before)) == "<s>user: "
    assert slot == "image"
    assert tokenizer.decode(list(after)) == " Report.\nassistant:"  # type: ignore[arg-type]
