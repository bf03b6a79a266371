"""Memory worked out on the meta device, against what is known and what is really allocated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, DynamicCache, LlamaForCausalLM

from radweave.core.errors import InputError
from radweave.engine.estimate import (
    PUBLISHED,
    build_on_meta,
    estimate,
    kv_cache_bytes,
    language_pass,
    saved_bytes,
)
from radweave.methods import method_names, resolve
from radweave.methods.stage import build_optimizer
from radweave.nn.language_model import LlamaConfig, LoraConfig
from tests.checkpoints import write_language_model
from tests.toys import TOY_OVERRIDES, TOY_SIZES

LLAMA_2_7B = 6_738_415_616
"""Parameters of the published checkpoint: 2 V H + L (4 H^2 + 3 H F + 2 H) + H."""


def llama_2_7b() -> LlamaForCausalLM:
    shape = dict(PUBLISHED["meta-llama/Llama-2-7b-hf"])
    with torch.device("meta"):
        return LlamaForCausalLM(AutoConfig.for_model(shape.pop("model_type"), **shape))


def test_llama_2_7b_has_the_published_number_of_parameters() -> None:
    V, H, F, L = 32000, 4096, 11008, 32
    assert 2 * V * H + L * (4 * H * H + 3 * H * F + 2 * H) + H == LLAMA_2_7B
    assert sum(parameter.numel() for parameter in llama_2_7b().parameters()) == LLAMA_2_7B


def test_adapters_have_rank_times_inputs_and_outputs() -> None:
    model = LoraConfig(rank=16, targets=("q_proj", "v_proj")).apply(llama_2_7b())
    by_peft = sum(parameter.numel() for name, parameter in model.named_parameters() if "lora_" in name)
    assert by_peft == 16 * (4096 + 4096) * 2 * 32 == 8_388_608
    # Every linear map of a layer, as QLoRA has it: the formula with other shapes.
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    model = LoraConfig(rank=8, targets=names).apply(llama_2_7b())
    by_peft = sum(parameter.numel() for name, parameter in model.named_parameters() if "lora_" in name)
    assert by_peft == 8 * (4 * (4096 + 4096) + 3 * (4096 + 11008)) * 32


@pytest.mark.long
def test_the_paper_preset_of_vdgen_is_llama_with_adapters() -> None:
    result = estimate("vdgen", "paper")
    part = result.parts["language_model"]
    assert part.parameters == LLAMA_2_7B + 8_388_608
    assert part.trainable == 8_388_608
    # The model in bfloat16, its adapters in float32 once they are real; the meta device leaves them as they were made.
    assert part.weight_bytes == pytest.approx(2 * LLAMA_2_7B, rel=0.003)
    assert result.optimizer == 8 * result.trainable
    assert result.training == result.weights + result.optimizer + max(result.gradients, result.activations)
    checkpointed = estimate("vdgen", "paper", ["model.language_model.gradient_checkpointing=true"])
    assert checkpointed.saved["language_model"] < result.saved["language_model"] / 8
    assert checkpointed.saved["vision_encoder"] == result.saved["vision_encoder"]
    assert checkpointed.weights == result.weights


@pytest.mark.long
def test_tokens_before_the_report_follow_from_the_configuration() -> None:
    two = estimate("am_mrg", "paper").tokens
    # Two views of 14 x 14 tokens, 14 image queries, 14 diseases in two memories, the prompt's words, 100 of the report.
    assert 20 <= two - (2 * 196 + 14 + 28 + 100) <= 45
    assert two - estimate("am_mrg", "paper", ["data.max_views=1"]).tokens == 196
    assert two - estimate("am_mrg", "paper", ["model.report_memory=none"]).tokens == 14
    told = ["data.input_sections=[indication]", "data.input_tokens=40"]
    assert estimate("am_mrg", "paper", told).tokens - two == 40
    assert estimate("am_mrg", "paper", prompt_tokens=128).tokens == 228


@pytest.mark.long
@pytest.mark.parametrize("method", method_names())
@pytest.mark.parametrize("preset", ["tiny", "small", "paper"])
def test_every_preset_can_be_estimated(method: str, preset: str) -> None:
    result = estimate(method, preset)
    if not any(stage.losses for stage in resolve(method, preset, []).named_stages().values()):
        assert result.parameters == result.trainable == result.optimizer == 0, "nothing trains in it"
        return
    assert 0 < result.trainable <= result.parameters
    assert result.activations > 0
    assert result.kv_cache > 0


def test_a_real_model_has_the_estimated_bytes() -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]
    experiment = resolve("baseline", "tiny", overrides)
    meta = build_on_meta(experiment)
    real = meta.to_empty(device="cpu")
    result = estimate("baseline", "tiny", overrides)
    assert sum(p.numel() * p.element_size() for p in real.parameters()) == result.weights
    stage = list(experiment.named_stages().values())[-1]
    for name, part in real.named_children():
        part.requires_grad_(stage.trained.get(name) == "full")
    trained = [p for p in real.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = build_optimizer(real, stage.optimizer)
    optimizer.step()
    assert sum(p.grad.nbytes for p in trained if p.grad is not None) == result.gradients
    moments = [v for state in optimizer.state.values() for k, v in state.items() if k != "step"]
    assert sum(value.nbytes for value in moments) == result.optimizer


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_the_key_value_cache_has_the_estimated_bytes(kv_heads: int) -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=kv_heads,
    )  # fmt: skip
    cache = DynamicCache(config=config)
    LlamaForCausalLM(config)(input_ids=torch.ones(2, 7, dtype=torch.long), past_key_values=cache, use_cache=True)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert kv_cache_bytes(config, 2, 7, 4) == held


@pytest.mark.parametrize("half", [False, True])
def test_activations_are_those_that_autograd_saves(half: bool) -> None:
    record = LlamaConfig(hidden_size=64, num_layers=2, num_heads=4, dropout=0.1)
    part = record.build(vocab_size=300, bos_id=1, eos_id=2, pad_id=0).train()
    run = language_pass(part, 3, 20, 12)
    weights = {weight.untyped_storage().data_ptr() for weight in part.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=half):
        run()
    real = sum(storage.nbytes() for storage in saved.values())
    with torch.device("meta"):
        empty = record.build(vocab_size=300, bos_id=1, eos_id=2, pad_id=0).train()
    assert saved_bytes(empty, language_pass(empty, 3, 20, 12), half=half) == pytest.approx(real, rel=0.05)


def test_activations_of_trained_encoders_and_shards_of_ranks() -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]
    frozen = estimate("baseline", "tiny", overrides)
    assert set(frozen.saved) == {"language_model"}
    whole = [*overrides, "stages.report.finetune={vision_encoder: full, connector: full, language_model: full}"]
    one, two = (estimate("baseline", "tiny", whole, ranks=ranks) for ranks in (1, 2))
    assert one.saved["vision_encoder"] > 0
    assert one.saved["language_model"] == frozen.saved["language_model"]
    assert two.optimizer == one.optimizer / 2 == 2 * two.gradients
    assert two.weights == 1.5 * one.weights, "a whole copy and a shard"
    assert two.activations == pytest.approx(one.activations / 2, rel=0.1)
    assert two.generation == one.generation


@pytest.mark.parametrize(
    ("batch_size", "ranks", "largest"), [(8, 2, 4), (9, 2, 5), (7, 4, 2), (3, 4, 1), (4, 4, 1), (5, 1, 5)]
)
def test_the_largest_share_of_a_batch_counts(batch_size: int, ranks: int, largest: int) -> None:
    """A batch that does not divide is cut into unequal shares: memory is that of the process with the most studies."""

    def shared(batch: int, ranks: int) -> dict[str, int]:
        whole = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], f"stages.report.batch_size={batch}"]
        return estimate("baseline", "tiny", whole, ranks=ranks).saved

    assert shared(batch_size, ranks) == shared(largest, 1) != shared(largest + 1, 1)


def test_beams_multiply_the_cache_and_the_greater_of_gradients_and_activations_counts() -> None:
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]]
    one, three = (estimate("baseline", "tiny", [*overrides, f"decoding.num_beams={beams}"]) for beams in (1, 3))
    assert three.kv_cache == 3 * one.kv_cache > 0
    assert one.training == one.weights + one.optimizer + max(one.gradients, one.activations)
    assert min(one.gradients, one.activations) > 0


def test_quantised_linear_maps_take_a_byte_or_nine_sixteenths(tmp_path: Path) -> None:
    write_language_model("llama", tmp_path)
    words = f"model.language_model={{kind: pretrained, path: {tmp_path}, lora: {{kind: lora, rank: 2}}%s}}"
    sizes = {
        kind: estimate("baseline", "tiny", [words % more, "data.max_tokens=16"], prompt_tokens=8)
        .parts["language_model"]
        .weight_bytes
        for kind, more in (("none", ""), ("8bit", ", quantization: 8bit"), ("4bit", ", quantization: 4bit"))
    }
    # Two layers of width 32 with two heads of keys and values, and a gated net of 48: 4 maps of attention, 3 behind it.
    maps = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48)
    assert sizes["none"] - sizes["8bit"] == 3 * maps
    assert sizes["none"] - sizes["4bit"] == (4 - 9 / 16) * maps


def test_a_checkpoint_of_unknown_shape_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.*cannot load the shape of a checkpoint"):
        estimate("baseline", "tiny", [f"model.vision_encoder={{kind: swin, path: {tmp_path / 'nowhere'}}}"])
