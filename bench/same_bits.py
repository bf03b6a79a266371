"""The same bits before and after a refactor: weights after three updates of each stage, drafts of ten studies.

    PYTHONPATH=src python same_bits.py DATA OUT.json [CASE ...]

DATA keeps the phantom studies, drawn once where they are not there yet; compare two revisions with ``cmp``.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from radweave.data.cache import build_cache
from radweave.data.dataset import Dataset
from radweave.methods import load_method
from radweave.phantom.study import PhantomOptions
from radweave.phantom_dataset import write_phantom_dataset
from radweave.runs import prepare, resolve, restore, train
from radweave.train.loop import StageTrainer

NO_E = ["model.diagnosis=none", "stages.diagnosis.epochs=0"]
NO_WORDS = ["model.word_head=none", "stages.vision.epochs=0"]
VARIANTS: dict[tuple[str, str], dict[str, list[str]]] = {
    ("baseline", "tiny"): {"average": ["model.views=average", *NO_WORDS]},
    ("baseline", "tiny-ct"): {},
    ("vdgen", "tiny"): {
        "no did": ["model.did=none"],
        "no vse": ["model.vse=none", "model.vision_norm=none", *NO_WORDS],
        "two views": ["model.vse=two_views"],
    },
    ("am_mrg", "tiny"): {
        "no regions": ["model.visual_memory=none"],
        "no reports": ["model.report_memory=none"],
        "neither": ["model.visual_memory=none", "model.report_memory=none", "model.word_head=none"],
        "whole": ["model.report_memory.reports.unit=report"],
    },
    ("dast", "tiny"): {
        "no retrieval": ["model.retrieval=none"],
        "baseline": ["model.retrieval=none", "model.fusion=none"],
        "mean": ["model.fusion=mean"],
        "concat": ["model.fusion=concat"],
    },
    ("diffrgennet", "tiny"): {
        "no retrieval": ["model.retrieval=none"],
        "no retrieval, priors": ["model.retrieval=none", "data.priors=true"],
        "no difference": ["model.difference=none"],
        "priors": ["data.priors=true"],
        "concat": ["model.aggregation=concat", "model.matching=none", *NO_WORDS],
        "llama": ["model.language_model={kind: llama, hidden_size: 64, num_layers: 1}", "model.dim=48"],
    },
    ("diffvp", "tiny"): {
        "no difference": ["model.difference=none"],
        "no E": NO_E,
        "neither": ["model.difference=none", "model.word_head=none", "stages.vision.losses={disease: 1.0}", *NO_E],
        "local": ["model.difference.kind=local"],
        "pixel": ["model.difference.kind=pixel", "data.keep_features=false"],
    },
    ("diffvp", "tiny-xray"): {
        "own prior": ["data.priors=true", "model.pool.use_prior=true"],
        "pixel, own prior": [
            "data.priors=true",
            "model.pool.use_prior=true",
            "model.difference.kind=pixel",
            "data.keep_features=false",
        ],
        "E of its own": [
            "model.diagnosis.encoder={kind: resnet, embedding_size: 8, hidden_sizes: [8, 16], "
            "depths: [1, 1], layer_type: basic}",
            "data.keep_features=false",
        ],
    },
}


def sha(*pieces: bytes) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()[:16]


def weights(model: torch.nn.Module) -> str:
    return sha(
        *(
            f"{name} {tuple(value.shape)} {value.dtype}".encode()
            + value.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for name, value in model.state_dict().items()
        )
    )


def one(method: str, preset: str, overrides: list[str], data: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"weights": {}, "metrics": {}}
    plain = resolve(method, preset, [])
    options = ["data.keep_stages=false", "decoding.max_new_tokens=24", "decoding.min_new_tokens=8"]
    for name in plain.named_stages():
        options += [f"stages.{name}.max_steps=3", f"stages.{name}.epochs=1", f"stages.{name}.batch_size=6"]
    if method == "diffvp":
        options.append("model.pool.contamination=0.5")
    run = StageTrainer.run

    def watched(self: StageTrainer) -> Any:
        progress = run(self)
        found["weights"][self.name] = weights(self.model)
        found["metrics"][self.name] = progress.history[-1]
        return progress

    StageTrainer.run = watched
    try:
        with tempfile.TemporaryDirectory() as folder:
            out = train(method, data, Path(folder) / "run", preset=preset, overrides=[*options, *overrides])
            restored = restore(out)
            found["restored"] = weights(restored.model)
            dataset = Dataset.open(data)
            cache = build_cache(dataset, size=restored.experiment.data.image_size, ct=restored.experiment.data.ct)
            studies = prepare(dataset, None, restored.experiment, restored.tokenizer, cache, need_text=False).examples
            # Studies of the test split, and two of training, which must not recall themselves.
            order = [s.study_id for s in dataset.studies("test")] + [s.study_id for s in dataset.studies("train")]
            chosen = sorted(studies, key=lambda e: order.index(e.study_id) if e.study_id in order else 999)[:10]
            reports = list(restored.predictor().reports(chosen, batch_size=4))
            found["drafts"] = [report.text for report in reports]
            found["evidence"] = sha(json.dumps([r.evidence for r in reports], sort_keys=True, default=str).encode())
            memories = sorted((out / "memories").rglob("*")) if (out / "memories").is_dir() else []
            found["memories"] = {
                str(p.relative_to(out)): sha(p.read_bytes()) for p in memories if p.is_file() and p.name != "bank.json"
            }
    finally:
        StageTrainer.run = run
    return found


def main() -> None:
    data, out, asked = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    torch.set_num_threads(1)
    for modality in ("xray", "ct"):
        if not (data / modality).is_dir():
            options = PhantomOptions(prevalence="balanced", image_size=128, volume_size=32, slices=16)
            write_phantom_dataset(data / modality, modality=modality, num_studies=40, seed=0, options=options)
    found = {}
    for (method, preset), variants in VARIANTS.items():
        for name, overrides in {"full": [], **variants}.items():
            title = f"{method} {preset} {name}"
            if asked and not any(title.startswith(word) for word in asked):
                continue
            modality = "ct" if load_method(method).PRESETS[preset]().data.modality == "ct" else "xray"
            found[title] = one(method, preset, overrides, data / modality)
            print(title, sha(json.dumps(found[title], sort_keys=True).encode()), flush=True)
            out.write_text(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
