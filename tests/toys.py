"""Small data sets, sizes and helpers that tests of several rooms share; the fixtures made of them are in conftest."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from radweave.core.study import SPLITS, ImageRef, LabelState, Study, View
from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter

ROOT = Path(__file__).resolve().parent.parent


def bench_program(name: str) -> Any:
    """A script of ``bench/`` as a module of its own."""
    spec = spec_from_file_location(f"bench_{name}", ROOT / "bench" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


# Small enough that a run trains in seconds; the same parts as the tiny preset.
TOY_OVERRIDES = (
    "data.image_size=32",
    "data.max_tokens=40",
    "data.tokenizer.vocab_size=300",
    "stages.report.patience=null",
    "stages.report.abnormal_weight=1",
    "stages.report.batch_size=4",
    "stages.report.optimizer.warmup_steps=2",
    "decoding.max_new_tokens=40",
    # Every training draws reports of its validation studies for drafting; the presets' eight take half of its time.
    "decoding.expected_utility.samples=1",
)
TOY_SIZES: dict[str, Sequence[str]] = {
    "baseline": (
        "stages.encoder.epochs=0",
        "model.vision_encoder.start=nothing",
        "model.vision_encoder.embedding_size=8",
        "model.vision_encoder.hidden_sizes=[8,16]",
        "model.vision_encoder.depths=[1,1]",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
    ),
    "generator": (
        "stages.encoder.epochs=0",
        "model.scratch.patch_size=8",
        "model.scratch.vision_width=16",
        "model.scratch.vision_layers=1",
        "model.scratch.vision_heads=2",
        "model.scratch.width=32",
    ),
    # The oldest way to describe an image takes no time on a small one.
    "kernels": ("data.image_size=32",),
    "weave": (
        "stages.encoder.epochs=1",
        "stages.encoder.batch_size=4",
        "stages.sources.epochs=1",
        "stages.sources.batch_size=4",
        "model.members=2",
        "model.vision_encoder.start=nothing",
        "model.vision_encoder.embedding_size=8",
        "model.vision_encoder.hidden_sizes=[8,16]",
        "model.vision_encoder.depths=[1,1]",
        "decoding.expected_utility.samples=1",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
    ),
    "vdgen": (
        "stages.encoder.epochs=0",
        "stages.language.epochs=0",
        # The paper's encoder; the preset has another.
        "model.vision_encoder={kind: swin, patch_size: 4, embed_dim: 8, depths: [1,1], num_heads: [1,2], "
        "window_size: 4}",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
    ),
    "am_mrg": (
        "stages.encoder.epochs=0",
        "stages.disease.epochs=1",
        "stages.disease.batch_size=4",
        "stages.language.epochs=0",
        "model.vision_encoder.start=nothing",
        "model.vision_encoder.embedding_size=8",
        "model.vision_encoder.hidden_sizes=[8,16]",
        "model.vision_encoder.depths=[1,1]",
        "model.query_former.dim=32",
        "model.query_former.num_image_queries=3",
        # as printed: statistics over three studies are none
        "model.query_norm=none",
        "model.visual_memory.norm=none",
        "model.report_memory.norm=none",
        "model.visual_memory.head_dim=8",
        "model.report_memory.head_dim=8",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
        "model.image_grid=2",
    ),
    "dast": (
        "stages.encoder.epochs=0",
        "stages.disease.epochs=1",
        "stages.disease.batch_size=4",
        "stages.language.epochs=1",
        "stages.language.batch_size=4",
        # The paper's encoder; the preset has another.
        "model.vision_encoder={kind: vmamba, dims: [8,8,16], depths: [1,1,1], ssm_ratio: 1.0, mlp_ratio: 2.0, "
        "drop_path: 0.0}",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
    ),
    "diffvp": (
        "data.ct.size=[8,16,16]",
        "stages.encoder.epochs=0",
        "stages.vision.epochs=1",
        "stages.diagnosis.epochs=1",
        "stages.latents.epochs=1",
        "stages.language.epochs=0",
        # Of so few phantom scans none may be normal.
        "model.pool.contamination=1.0",
        # An E that was hardly trained names nothing.
        "model.diagnosis.prior=0.001",
        "model.vision_encoder.start=nothing",
        "model.vision_encoder.widths=[4,4,8,8]",
        "model.resampler.num_latents=8",
        "model.resampler.dim=32",
        "model.resampler.sharpness=1.0",
        "model.difference.prompt_tokens=2",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
    ),
    "diffrgennet": (
        "stages.encoder.epochs=0",
        "model.vision_encoder.start=nothing",
        "model.vision_encoder.embedding_size=8",
        "model.vision_encoder.hidden_sizes=[8,16]",
        "model.vision_encoder.depths=[1,1]",
        "model.retrieval.num_cases=3",
        "model.text_encoder.width=8",
        "model.text_encoder.num_buckets=256",
        "model.difference.hidden=16",
        "model.language_model.hidden_size=32",
        "model.language_model.num_layers=2",
    ),
}
"""Per method, overrides that shrink it for tests; the contract tests need an entry for every method. One that reads CT
has ``data.ct.size=[8,16,16]`` among them."""

TOY_CT_OVERRIDES = (
    "data.ct.size=[8,16,16]",
    "data.max_tokens=40",
    "data.tokenizer.vocab_size=300",
    "model.vision_encoder.start=nothing",
    "model.vision_encoder.widths=[4,4,8,8]",
    *(option for option in TOY_SIZES["baseline"] if "vision_encoder" not in option),
    "stages.report.batch_size=8",
    "stages.report.epochs=1",
    "stages.report.select=loss",
    "decoding.max_new_tokens=12",
    "decoding.expected_utility.samples=1",
)
"""Overrides that shrink the preset ``tiny-ct`` of the baseline."""


def toy_image(path: Path, *, bright_side: str, seed: int, size: tuple[int, int] = (48, 40)) -> Path:
    """A grey PNG, (width, height) ``size``, with a bright patch on one side."""
    rng = np.random.default_rng(seed)
    width, height = size
    # Smooth: an image of noise would be refused as doubtful.
    coarse = Image.fromarray(rng.integers(0, 60, (5, 6)).astype(np.uint8))
    pixels = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)).clip(0, 60)
    left = slice(4, width // 3) if bright_side == "left" else slice(2 * width // 3, width - 4)
    pixels[height // 4 : 3 * height // 4, left] += 160
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


TOY_REPORTS = {
    "left": "There is an opacity on the left. The heart is normal.",
    "right": "There is an opacity on the right. The heart is enlarged. No effusion.",
}


def write_toy_dataset(folder: Path, sources: Path, *, counts: Sequence[int] = (12, 4, 6)) -> Dataset:
    """A dataset folder with ``counts`` studies in train, val and test; every third study has two views."""
    with DatasetWriter(folder, DatasetCard(name="toy", split_provenance="made up")) as writer:
        index = 0
        for split, count in zip(SPLITS, counts, strict=True):
            for _ in range(count):
                side = "left" if index % 2 else "right"
                views = [View.PA, View.LATERAL] if index % 3 == 0 else [View.PA]
                files = {
                    f"images/{index}_{place}.png": toy_image(
                        sources / f"{index}_{place}.png", bright_side=side, seed=10 * index + place
                    )
                    for place in range(len(views))
                }
                writer.add(
                    Study(
                        study_id=f"s{index:03d}",
                        patient_id=f"p{index:03d}",
                        split=split,
                        images=tuple(ImageRef(path=path, view=view) for path, view in zip(files, views, strict=True)),
                        report=TOY_REPORTS[side],
                        findings=TOY_REPORTS[side],
                        labels={"chexpert14": {"Lung Opacity": LabelState.POSITIVE}},
                    ),
                    files,
                )
                index += 1
    return Dataset.open(folder)


def write_followed_dataset(folder: Path, *, prior_of: str = "own") -> Dataset:
    """Eight patients in train, two in val, two in test. With ``prior_of`` "another" priors are other patients'."""
    opacity = "There is an opacity on the left{}. The heart is normal."
    then = [opacity.format(""), "The lungs are clear. The heart is normal."]
    now = [opacity.format(", larger than before"), opacity.format(", new since the prior study")]
    with DatasetWriter(folder, DatasetCard(name="followed", split_provenance="made up")) as writer:
        for patient in range(12):
            split = "train" if patient < 8 else "val" if patient < 10 else "test"
            for visit, text in enumerate((then[patient % 2], now[patient % 2])):
                name, path = f"s{patient}_{visit}", f"images/{patient}_{visit}.png"
                side = "left" if "opacity" in text else "right"
                picture = toy_image(folder.parent / f"{name}.png", bright_side=side, seed=2 * patient + visit)
                other = f"s{patient if prior_of == 'own' else patient ^ 1}_0"
                study = Study(
                    study_id=name,
                    patient_id=f"p{patient}",
                    split=split,  # type: ignore[arg-type]
                    images=(ImageRef(path=path, view=View.PA),),
                    report=text,
                    prior=other if visit else None,
                )
                writer.add(study, {path: picture})
    return Dataset.open(folder)


def rewrite_card(folder: Path, **changes: Any) -> None:
    """Change fields of a run card and make it whole again, as one who tampers on purpose would."""
    from radweave.engine.run_folder import RunCard, read_card_alone, write_card

    card = read_card_alone(folder)
    if "files" in changes:
        banks = {name.split("/")[1] for name in changes["files"] if name.startswith("memories/")}
        rows = {name: (folder / "memories" / name / "rows.jsonl").read_text().count("\n") for name in banks}
        retained = {name: count for name, count in card.memories.items() if name == "drafting"}
        changes.setdefault("memories", {**retained, **rows})
    write_card(folder, RunCard.model_validate({**card.model_dump(mode="json"), **changes}))
