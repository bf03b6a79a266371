"""Measure a published generator at full size on a GPU: memory and seconds of drafting and of training adapters.

    python bench/generator_gpu.py --out runs/generator_gpu --minutes 6
    python bench/generator_gpu.py --out runs/generator_gpu --tiny        # the same steps, small, on the CPU

The model has MedGemma-4B's shape and random weights in bfloat16; nothing is downloaded and no data set is read. Drafts
of random weights are noise: only memory, time and equality are measured. The result is printed and written as JSON
after each part. No part begins after ``--minutes``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radweave.data.loader import Example, collate
from radweave.data.tokenizer import load_tokenizer
from radweave.engine.estimate import Estimate, estimate_of
from radweave.methods import resolve
from radweave.methods.experiment import BuildContext, Experiment
from radweave.methods.generator.network import Checkpoint
from radweave.methods.generator.published import medgemma
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode, total_loss

TINY_TEXT = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 2048, "query_pre_attn_scalar": 16,
}  # fmt: skip
TINY_TOWER = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 112,
}  # fmt: skip


@dataclass
class Measured:
    """Parts with their figures, in order; written after each."""

    out: Path
    device: torch.device
    seconds: float
    started: float = field(default_factory=time.perf_counter)
    parts: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """Run a part; a failure is recorded, and the others continue."""
        if time.perf_counter() - self.started > self.seconds:
            self.parts[name] = {"left out": "no time"}
        else:
            begun = time.perf_counter()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            try:
                self.parts[name] = run()
            except Exception as error:
                self.parts[name] = {"failed": f"{type(error).__name__}: {error}"[:600]}
            self.parts[name]["seconds of the part"] = round(time.perf_counter() - begun, 2)
            if self.device.type == "cuda":
                self.parts[name]["peak bytes"] = torch.cuda.max_memory_allocated()
        self.write()

    def write(self) -> None:
        """Write ``generator_gpu.json``."""
        self.out.mkdir(parents=True, exist_ok=True)
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        facts = {"device": name, "torch": torch.__version__, **self.parts}
        (self.out / "generator_gpu.json").write_text(json.dumps(facts, indent=2) + "\n")

    def wait(self) -> float:
        """Seconds of the clock, when the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def studies(experiment: Experiment, number: int, words: int) -> list[Example]:
    """Studies of two views of noise, with reports of full length."""
    data = experiment.data
    random = np.random.default_rng(0)
    made = []
    for place in range(number):
        pixels = random.integers(0, 255, (2, data.image_size, data.image_size)).astype(np.uint8)
        ids = random.integers(10, words, data.max_tokens).tolist()
        made.append(Example(f"s{place}", f"p{place}", pixels, (0, 1), (1, 2), tuple(ids), report="noise"))
    return made


def experiments(tiny: bool, batch: int) -> dict[str, Experiment]:
    """The experiments that are measured, by name."""
    small = ["data.image_size=112", "data.max_tokens=32", "decoding.max_new_tokens=8"] if tiny else []
    common = [f"stages.report.batch_size={batch}", "decoding.kind=likelihood", *small]
    return {
        "zero-shot": resolve("generator", "zero-shot", common),
        "lora": resolve("generator", "lora", common),
        "lora, activations kept": resolve("generator", "lora", [*common, "model.gradient_checkpointing=false"]),
    }


def compared(estimated: Estimate, bytes_needed: int, peak: int | None) -> dict[str, Any]:
    """The estimate beside the peak."""
    facts: dict[str, Any] = {"estimated bytes": bytes_needed, "tokens": estimated.tokens}
    if peak:
        facts |= {"measured bytes": peak, "estimated / measured": round(bytes_needed / peak, 3)}
    return facts


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not options.tiny else "cpu")
    measured = Measured(options.out, device, options.minutes * 60)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shape = medgemma(TINY_TEXT, TINY_TOWER) if options.tiny else medgemma()
        Checkpoint(*shape).save_pretrained(str(folder / "vision_encoder"))
        tokenizer = load_tokenizer(folder / "vision_encoder")
        for name, experiment in experiments(options.tiny, options.batch).items():
            measure(name, experiment, folder, tokenizer, measured, tiny=options.tiny)
    print((options.out / "generator_gpu.json").read_text())


def measure(name: str, experiment: Experiment, folder: Path, tokenizer: Any, measured: Measured, *, tiny: bool) -> None:
    """Build a model, and draft with it or train it."""
    device, batch_size = measured.device, experiment.named_stages()["report"].batch_size
    held: dict[str, Any] = {}

    def build() -> dict[str, Any]:
        context = BuildContext(tokenizer, experiment.data.image_size, parts=folder)
        begun = measured.wait()
        with device:
            held["model"] = experiment.model.build(context).to(device).eval()
        model = held["model"]
        held["batch"] = collate(studies(experiment, batch_size, 290), pad_id=int(tokenizer.pad_token_id)).to(device)
        weights = sum(one.numel() * one.element_size() for one in model.parameters())
        return {"seconds": round(measured.wait() - begun, 2), "weight bytes": weights,
                "parameters": sum(one.numel() for one in model.parameters())}  # fmt: skip

    def draft() -> dict[str, Any]:
        model, batch = held["model"], held["batch"]
        length = experiment.decoding.max_new_tokens
        decoding = experiment.decoding.model_copy(update={"min_new_tokens": length})
        brief = decoding.model_copy(update={"min_new_tokens": 1, "max_new_tokens": 2})
        with torch.inference_mode():
            model.generate(batch.only([0]), brief)
            begun = measured.wait()
            model.generate(batch, brief)
            read = measured.wait() - begun
            begun = measured.wait()
            together = model.generate(batch, decoding).token_ids
            seconds = measured.wait() - begun
            peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
            begun = measured.wait()
            alone = model.generate(batch.only([0]), decoding).token_ids
            one = measured.wait() - begun
        estimated = None if tiny else estimate_of(experiment)
        return {
            "studies": len(together), "tokens of a draft": length, "seconds of reading": round(read, 3),
            "seconds": round(seconds, 3), "studies a second": round(len(together) / seconds, 3),
            "tokens a second": round(len(together) * length / seconds, 1), "seconds of one alone": round(one, 3),
            "the same alone as in the batch": alone[0] == together[0],
            **({} if estimated is None else compared(estimated, estimated.generation, peak)),
        }  # fmt: skip

    def train() -> dict[str, Any]:
        model, batch = held["model"], held["batch"]
        stage = experiment.named_stages()["report"]
        apply_finetune(model, stage.finetune)
        set_train_mode(model, stage.finetune)
        optimizer = build_optimizer(model, replace_rate(stage.optimizer))
        losses, seconds = [], []
        for _ in range(6):
            begun = measured.wait()
            loss = total_loss(model.loss(batch, tuple(stage.losses)), stage.losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.append(measured.wait() - begun)
            losses.append(round(float(loss), 4))
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
        trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
        estimated = None if tiny else estimate_of(experiment)
        step = sorted(seconds[1:])[len(seconds[1:]) // 2]
        return {
            "studies": len(batch), "trained": trained, "losses": losses, "seconds of a step": round(step, 3),
            "studies a second": round(len(batch) / step, 3),
            **({} if estimated is None else compared(estimated, estimated.training, peak)),
        }  # fmt: skip

    measured.part(f"{name}: build", build)
    if "model" in held:
        measured.part(f"{name}: {'train' if experiment.named_stages()['report'].learns else 'draft'}",
                      train if experiment.named_stages()["report"].learns else draft)  # fmt: skip
    held.clear()


def replace_rate(optimizer: Any) -> Any:
    """The optimiser without a warm-up, so that a few steps move the loss."""
    return optimizer.model_copy(update={"warmup_steps": 0})


if __name__ == "__main__":
    main()
