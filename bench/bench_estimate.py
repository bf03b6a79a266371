"""Estimated beside measured memory of small builds: what a process grows by while it trains on made-up batches.

    PYTHONPATH=src python bench/bench_estimate.py

Each build trains three updates in a process of its own. Measured is the greatest resident memory, less what the process
held before the model was built and after a first tiny model had loaded what torch loads once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BUILDS: dict[str, list[str]] = {
    "language model whole, encoder frozen": [
        "model.language_model.hidden_size=512", "model.language_model.num_layers=6",
        "model.language_model.intermediate_size=1536", "stages.report.batch_size=8",
    ],
    "adapters on the language model": [
        "model.language_model.hidden_size=512", "model.language_model.num_layers=6",
        "model.language_model.intermediate_size=1536", "model.language_model.lora={kind: lora, rank: 8}",
        "stages.report.finetune={connector: full, language_model: lora}", "stages.report.batch_size=8",
    ],
    "vision encoder trains too": [
        "model.vision_encoder={kind: vit, hidden_size: 256, num_layers: 6, num_heads: 4, patch_size: 16}",
        "data.image_size=224", "stages.report.batch_size=4",
        "stages.report.finetune={vision_encoder: full, connector: full, language_model: full}",
    ],
    "gradients outweigh activations": [
        "model.language_model.hidden_size=640", "model.language_model.num_layers=8",
        "model.language_model.intermediate_size=2560", "stages.report.batch_size=1",
    ],
}  # fmt: skip
WARM = ["model.language_model.hidden_size=32", "model.language_model.num_layers=1", "stages.report.batch_size=2"]


def resident(field: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (the most so far) of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def train(overrides: Sequence[str]) -> int:
    """Three updates; returns how many tokens stand before a report."""
    import torch

    from radweave.core.batch import Batch
    from radweave.core.ontology import CLASSES
    from radweave.data.tokenizer import BpeTokenizerConfig
    from radweave.methods import resolve
    from radweave.methods.experiment import BuildContext
    from radweave.methods.stage import apply_finetune, build_optimizer

    experiment = resolve("baseline", "tiny", overrides)
    data, stage = experiment.data, list(experiment.named_stages().values())[-1]
    tokenizer = BpeTokenizerConfig(vocab_size=300).build([])
    tokenizer.add_tokens([f"<{number}>" for number in range(data.tokenizer.vocab_size - len(tokenizer))])
    model = experiment.model.build(BuildContext(tokenizer, data.image_size, CLASSES[data.label_set])).train()
    apply_finetune(model, stage.finetune)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer, size, lengths = build_optimizer(model, stage.optimizer), stage.batch_size, []
    part, loss_of = model.language_model, model.language_model.loss
    part.loss = lambda prefix, *rest: (lengths.append(prefix.shape[1]), loss_of(prefix, *rest))[1]
    for _ in range(3):
        ids = torch.randint(3, len(tokenizer), (size, data.max_tokens))
        shown = torch.ones(size, data.max_views, dtype=torch.bool)
        batch = Batch(
            study_ids=["s"] * size, patient_ids=["p"] * size, view_mask=shown, view_ids=shown.long(),
            pixel_values=torch.rand(size, data.max_views, 1, data.image_size, data.image_size),
            input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids,
        )  # fmt: skip
        model.loss(batch, ["report"])["report"].backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return lengths[0]


def measure(overrides: Sequence[str]) -> tuple[int, int]:
    """Growth in bytes of this process, and tokens of the prompt."""
    import gc

    train(WARM)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    prompt = train(overrides)
    return resident("VmHWM") - before, prompt


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(json.loads(sys.argv[1]))))
        return
    from radweave.engine.estimate import estimate

    # Freed blocks go back to the system at once, so that what is resident is what is used.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    print("| build | estimated MB | weights | gradients | optimizer | activations | measured MB | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name, overrides in BUILDS.items():
        command = [sys.executable, __file__, json.dumps(overrides)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        grown, prompt = json.loads(done.stdout.splitlines()[-1])
        found = estimate("baseline", "tiny", overrides, prompt_tokens=prompt)
        kinds = (found.training, found.weights, found.gradients, found.optimizer, found.activations)
        numbers = " | ".join(f"{value / 1e6:.0f}" for value in kinds)
        print(f"| {name} | {numbers} | {grown / 1e6:.0f} | {found.training / grown:.2f} |", flush=True)


if __name__ == "__main__":
    main()
