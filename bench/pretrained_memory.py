"""Memory and time of the commands in docs/pretrained.md, worked out: prints the page's table.

    .venv/bin/python bench/pretrained_memory.py

Memory is what ``radweave estimate`` says. Time is floating-point operations over what an A100 does: 4 per parameter of
the language model and token where its weights are frozen or have adapters, 6 where they train, and 40 % of 312 TFLOP/s.
Nothing is measured, no weights are needed. The vision encoder, reading of images, and validation are not counted.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from radweave.core.errors import InputError
from radweave.engine.estimate import Estimate, estimate
from radweave.methods import resolve

PEAK_FLOPS = 312e12
REACHED = 0.4
STUDIES = 1000
# Published sizes of models that the estimate does not know by name.
RAD_DINO = {"model_type": "dinov2", "image_size": 518, "patch_size": 14}
QWEN = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip

LM = "model.language_model"
FINETUNE = "stages.report.finetune.language_model"
LORA = {
    "dast": [f"{LM}.lora={{kind: lora, targets: [qkv_proj, o_proj]}}", f"{FINETUNE}=lora"],
    "": [f"{LM}.lora=lora", f"{FINETUNE}=lora"],
}
TODAY = [
    "model.vision_encoder=transformers", "model.vision_encoder.path={rad_dino}", "data.image_size=224",
    f"{LM}.path={{qwen}}", f"{LM}.dtype=bfloat16",
]  # fmt: skip
# Label -> method, overrides.
COMMANDS: dict[str, tuple[str, list[str]]] = {
    "baseline": ("baseline", []),
    "vdgen": ("vdgen", []),
    "am_mrg": ("am_mrg", []),
    "dast": ("dast", []),
    "diffrgennet": ("diffrgennet", []),
    "diffvp": ("diffvp", []),
    "RAD-DINO and Qwen2.5-7B": ("baseline", TODAY),
}


def rows(folder: Path) -> None:
    """Print one row per command and way of training the language model."""
    paths = {"rad_dino": RAD_DINO, "qwen": QWEN}
    for name, shape in paths.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(shape))
    columns = ("tokens before the report", "as written", "LoRA", "LoRA in 4 bit", "full", "writing reports")
    print(f"| all figures estimated | {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|")
    for label, (method, changes) in COMMANDS.items():
        base = [change.format(**{name: folder / name for name in paths}) for change in changes]
        lora = LORA.get(method, LORA[""])
        ways = {
            "as written": [],
            "LoRA": lora,
            "LoRA in 4 bit": [*lora, f"{LM}.quantization=4bit"],
            "full": [f"{LM}.lora=none", f"{FINETUNE}=full"],
        }
        cells = []
        for way, more in ways.items():
            try:
                found = estimate(method, "paper", [*base, *more])
                cells.append(shown(found, full=way == "full"))
            except InputError:  # BERT has no 4 bits
                cells.append("-")
        written = estimate(method, "paper", base)
        tokens = written.tokens - resolve(method, "paper", base).data.max_tokens
        print(f"| {label} | {tokens} | {' | '.join(cells)} | {written.generation / 1e9:.0f} GB |", flush=True)


def shown(found: Estimate, *, full: bool) -> str:
    """Memory of training, and minutes for a thousand studies."""
    writer = found.parts["language_model"].parameters
    operations = (6 if full else 4) * writer * found.tokens * STUDIES
    minutes = operations / PEAK_FLOPS / REACHED / 60
    return f"{found.training / 1e9:.0f} GB, {f'{minutes:.1f}' if minutes >= 0.1 else 'under 0.1'} min"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        rows(Path(temporary))
