"""bfloat16 and gradient checkpointing: less memory, nearly or exactly the same training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig as HFConfig
from transformers import LlamaForCausalLM

from radweave.core.batch import Batch
from radweave.engine.loop import StageTrainer, Watch
from radweave.methods.stage import OptimizerConfig, StageConfig, apply_finetune
from radweave.nn.language_model import CausalLanguageModel, LlamaConfig, LoraConfig, PretrainedLanguageModelConfig

VOCAB, WIDTH, IDS = 60, 32, {"bos_id": 1, "eos_id": 2, "pad_id": 0}


class Speaker(nn.Module):
    """A connector and a language model that writes what three numbers say."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.connector = nn.Linear(3, WIDTH)
        self.language_model = LlamaConfig(hidden_size=WIDTH, num_layers=2, num_heads=4).build(vocab_size=VOCAB, **IDS)
        self.dtypes: set[torch.dtype] = set()

    def loss(self, batch: Batch, terms: Sequence[str] = ("report",)) -> dict[str, Tensor]:
        assert batch.pixel_values is not None
        assert batch.input_ids is not None
        projected = self.connector(batch.pixel_values)
        self.dtypes.add(projected.dtype)
        mask = torch.ones(projected.shape[:2], dtype=torch.bool, device=projected.device)
        return {"report": self.language_model.loss(projected, mask, batch.input_ids, batch.input_ids)}


class Sentences:
    """Two batches an epoch: the sign of the input decides the text."""

    steps_per_epoch = 2

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        for step in range(first_step, self.steps_per_epoch):
            values = torch.randn(8, 1, 3, generator=torch.Generator().manual_seed(2 * epoch + step))
            first = torch.where(values[:, 0, 0] > 0, 10, 20)
            ids = torch.stack([first, first + 1, first + 2, torch.full_like(first, IDS["eos_id"])], dim=1)
            names = [f"s{number}" for number in range(8)]
            yield Batch(study_ids=names, patient_ids=names, pixel_values=values, input_ids=ids)


def trained(folder: Path, precision: str, device: str = "cpu") -> tuple[Speaker, list[float]]:
    folder.mkdir()
    model = Speaker().to(device)
    losses: list[float] = []
    stage = StageConfig.model_validate(
        {
            "finetune": {"connector": "full", "language_model": "full"},
            "losses": {"report": 1.0},
            "optimizer": OptimizerConfig(learning_rate=3e-3, warmup_steps=5),
            "epochs": 30,
            "precision": precision,
            "select": "last",
            "checkpoint_every": 1000,
        }
    )
    StageTrainer(
        model=model,
        stage=stage,
        batches=Sentences(),  # type: ignore[arg-type]
        name="report",
        seed=0,
        folder=folder,
        validate=lambda: {"loss": 0.0},
        fingerprint="f",
        watch=Watch(step=lambda step, total, figures: losses.append(figures["loss"])),
    ).run()
    return model, losses


@pytest.mark.long
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
        ),
    ],
)
def test_bfloat16_trains_near_float32_with_float32_weights(tmp_path: Path, device: str) -> None:
    exact, exact_losses = trained(tmp_path / "exact", "float32", device)
    mixed, mixed_losses = trained(tmp_path / "mixed", "bfloat16", device)
    assert exact.dtypes == {torch.float32}
    assert mixed.dtypes == {torch.bfloat16}
    assert {parameter.dtype for parameter in mixed.parameters()} == {torch.float32}
    assert exact_losses[-1] < 0.3 * exact_losses[0]
    # bfloat16 keeps 8 bits: single products are off by up to 0.4 %, and 60 steps let the two part a little further.
    assert mixed_losses[0] == pytest.approx(exact_losses[0], rel=0.01)
    assert sum(mixed_losses) == pytest.approx(sum(exact_losses), rel=0.05)
    assert mixed_losses != exact_losses


def pretrained(folder: Path, **options: object) -> CausalLanguageModel:
    if not (folder / "config.json").is_file():
        torch.manual_seed(0)
        shape = HFConfig(
            vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
        )
        LlamaForCausalLM(shape).save_pretrained(folder)
    torch.manual_seed(1)
    lora = LoraConfig(rank=4, dropout=0.0, targets=("q_proj", "v_proj"))
    config = PretrainedLanguageModelConfig.model_validate({"path": str(folder), "lora": lora} | options)
    return config.build(vocab_size=VOCAB, **IDS)


def gradients(language_model: CausalLanguageModel, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one batch, as a stage with adapters computes them; the prefix has one too."""
    model = nn.ModuleDict({"language_model": language_model})
    apply_finetune(model, {"language_model": "lora"})
    language_model.train()
    prefix = torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(5)).requires_grad_()
    ids = torch.tensor([[7, 8, 9, 2], [11, 12, 13, 2]])
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = language_model.loss(prefix, torch.ones(2, 3, dtype=torch.bool), ids, ids)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients_of = {name: p.grad for name, p in language_model.named_parameters() if p.grad is not None}
    assert prefix.grad is not None
    return float(loss.detach()), {"prefix": prefix.grad, **gradients_of}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_checkpointing_changes_no_gradient(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = gradients(pretrained(tmp_path), dtype)
    checkpointed = gradients(pretrained(tmp_path, gradient_checkpointing=True), dtype)
    assert plain[0] == checkpointed[0]
    assert set(plain[1]) == set(checkpointed[1])
    assert any("lora_A" in name for name in plain[1])
    for name, value in plain[1].items():
        torch.testing.assert_close(checkpointed[1][name], value, atol=0, rtol=0)


def test_gradient_checkpointing_recomputes(tmp_path: Path) -> None:
    calls = []
    language_model = pretrained(tmp_path, gradient_checkpointing=True)
    language_model.model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    gradients(language_model, torch.float32)
    assert len(calls) == 2


def test_adapters_of_a_half_precision_model_are_float32_and_train(tmp_path: Path) -> None:
    language_model = pretrained(tmp_path, dtype="bfloat16")
    adapters = {n: p.dtype for n, p in language_model.named_parameters() if "lora_" in n}
    others = {p.dtype for n, p in language_model.named_parameters() if "lora_" not in n}
    assert set(adapters.values()) == {torch.float32}
    assert others == {torch.bfloat16}
    loss, gradients_of = gradients(language_model, torch.float32)
    exact, _ = gradients(pretrained(tmp_path), torch.float32)
    assert loss == pytest.approx(exact, rel=0.02)  # 8 bits of mantissa
    assert all(bool(torch.isfinite(value).all()) for value in gradients_of.values())
    assert all(bool(value.abs().sum() > 0) for name, value in gradients_of.items() if "lora_B" in name)
