"""Language models and encoders from checkpoints in the real format: train, report, and restore without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GemmaConfig,
    GemmaForCausalLM,
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

import radweave
from radweave.core.errors import InputError
from radweave.data.dataset import Dataset
from radweave.data.tokenizer import BpeTokenizerConfig, save_tokenizer
from radweave.engine.checkpoint import load_weights, save_weights
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.export import export
from radweave.inference.predictor import Predictor
from radweave.methods.stage import apply_finetune
from radweave.nn.decoding import OWN_DECODER, DecodingConfig
from radweave.nn.encoder_decoder import PretrainedBertDecoderConfig
from radweave.nn.language_model import LoraConfig, NoLoraConfig, PretrainedLanguageModelConfig
from radweave.nn.prompt import PromptTemplate
from tests.toys import TOY_OVERRIDES, TOY_REPORTS, TOY_SIZES

SHAPE = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": False,
}  # fmt: skip
FAMILIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": lambda size: LlamaForCausalLM(LlamaConfig(vocab_size=size, **SHAPE)),
    "phi3": lambda size: Phi3ForCausalLM(Phi3Config(vocab_size=size, pad_token_id=0, **SHAPE)),
    "qwen2": lambda size: Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **SHAPE)),
    "gemma": lambda size: GemmaForCausalLM(GemmaConfig(vocab_size=size, head_dim=8, **SHAPE)),
    "gpt2": lambda size: GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=4)),
}


pytestmark = pytest.mark.long


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
        "data.tokenizer=pretrained",
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
    report = Predictor.of(restore(run), decoding=[OWN_DECODER]).report(images)
    exported = export(run, tmp_path / "exported")
    shutil.rmtree(checkpoint)
    restored = restore(run)
    assert Predictor.of(restored, decoding=[OWN_DECODER]).report(images) == report
    shutil.move(run, tmp_path / "away")
    assert radweave.load(exported, own_decoder=True).report(images) == report
    assert f"started from the checkpoint `{checkpoint.name}`" in (exported / "LICENSES.md").read_text()
    pages = [path.read_text() for path in exported.rglob("*") if path.suffix in (".md", ".json", ".yaml")]
    assert not any(str(tmp_path) in page for page in pages)
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


def _first_byte_of_the_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[8] ^= 0xFF
    path.write_bytes(data)


def _cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-64])


@pytest.mark.parametrize("harm", [_first_byte_of_the_header, _cut_short])
def test_a_broken_shard_is_named(harm: Callable[[Path], None], tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama")
    shard = sorted(checkpoint.glob("*.safetensors"))[1]
    harm(shard)
    with pytest.raises(InputError, match=f"{shard.name}: cannot load a language model"):
        PretrainedLanguageModelConfig(path=str(checkpoint)).build(vocab_size=300, bos_id=1, eos_id=2, pad_id=0)


def test_a_checkpoint_that_lacks_weights_is_not_filled_with_noise(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", "llama")
    index = checkpoint / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    name = "model.layers.1.mlp.up_proj.weight"
    shard = checkpoint / content["weight_map"].pop(name)
    index.write_text(json.dumps(content))
    tensors = load_file(str(shard))
    del tensors[name]
    save_file(tensors, str(shard), metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"lacks 1 weights of the model: {name}"):
        PretrainedLanguageModelConfig(path=str(checkpoint)).build(vocab_size=300, bos_id=1, eos_id=2, pad_id=0)


@pytest.mark.parametrize("how", ["lora", "full"])
def test_a_bert_checkpoint_trains_as_a_decoder_writes_and_restores_without_its_folder(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertForMaskedLM(shape).save_pretrained(tmp_path / "bert", max_shard_size="20KB")
    assert len(list((tmp_path / "bert").glob("*.safetensors"))) > 1
    lora = LoraConfig(rank=4, dropout=0.0, targets=("query", "value")) if how == "lora" else NoLoraConfig()
    config = PretrainedBertDecoderConfig(path=str(tmp_path / "bert"), lora=lora)
    special = {"vocab_size": 60, "bos_id": 1, "eos_id": 2, "pad_id": 0}
    with pytest.warns(UserWarning, match="start from nothing"):
        decoder = config.build(**special)
    model = nn.ModuleDict({"language_model": decoder})
    apply_finetune(model, {"language_model": how})
    retained = {name: p.clone() for name, p in decoder.named_parameters() if not p.requires_grad}
    memory = torch.randn(2, 4, 32)
    mask = torch.ones(2, 4, dtype=torch.bool)
    ids = torch.tensor([[7, 8, 9, 10, 2], [7, 8, 12, 13, 2]])
    optimizer = torch.optim.AdamW([p for p in decoder.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(150):
        loss = decoder.loss(memory, mask, None, None, ids, ids)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    decoder.eval()
    written = decoder.generate(memory, mask, None, None, DecodingConfig(max_new_tokens=8))
    assert written[0] == [[7, 8, 9, 10], [7, 8, 12, 13]]
    assert bool(retained) == (how == "lora")
    assert all(torch.equal(dict(decoder.named_parameters())[name], value) for name, value in retained.items())
    save_weights(model, tmp_path / "weights.safetensors")
    decoder.architecture.save_pretrained(str(tmp_path / "parts"))
    shutil.rmtree(tmp_path / "bert")
    restored = config.build(**special, saved=tmp_path / "parts").eval()
    load_weights(nn.ModuleDict({"language_model": restored}), tmp_path / "weights.safetensors")
    assert restored.generate(memory, mask, None, None, DecodingConfig(max_new_tokens=8)) == written


@pytest.mark.parametrize("how", ["lora", "frozen"])
def test_a_run_with_a_bert_decoder_reports_exports_and_restores_without_its_folder(
    how: str, toy_dataset: Dataset, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    shape = BertConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    BertForMaskedLM(shape).save_pretrained(tmp_path / "bert", max_shard_size="20KB")
    lora = "{kind: lora, rank: 4, targets: [query, value]}" if how == "lora" else "{kind: none}"
    overrides = [
        *TOY_OVERRIDES,
        *(size for size in TOY_SIZES["diffrgennet"] if "language_model" not in size),
        f"model.language_model={{kind: pretrained, path: {tmp_path / 'bert'}, lora: {lora}}}",
        f"stages.report.finetune.language_model={how}",
        "data.tokenizer.force=true",  # the checkpoint has none
        "stages.report.epochs=2",
    ]
    with pytest.warns(UserWarning, match="start from nothing"):
        run = train("diffrgennet", toy_dataset.path, tmp_path / "run", overrides=overrides)
    images = [toy_dataset.image_path("images/1_0.png")]
    report = Predictor.of(restore(run), decoding=[OWN_DECODER]).report(images)
    exported = export(run, tmp_path / "exported")
    shutil.rmtree(tmp_path / "bert")
    assert Predictor.of(restore(run), decoding=[OWN_DECODER]).report(images) == report
    shutil.move(run, tmp_path / "away")
    # The recalled cases are the same; an export gives them numbers in place of their names.
    assert radweave.load(exported, own_decoder=True).report(images).text == report.text


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
    report = Predictor.of(restore(run), decoding=[OWN_DECODER]).report(images)
    shutil.rmtree(tmp_path / "swin")
    assert Predictor.of(restore(run), decoding=[OWN_DECODER]).report(images) == report


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
