"""The jobs of the distributed tests, each run by all ranks under torchrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from radweave.core.batch import Batch, Slice
from radweave.core.errors import InputError
from radweave.core.ontology import CLASSES
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import collate
from radweave.engine.distributed import Parallel, Ranks, joined_ranks, make_replica
from radweave.engine.loop import StageTrainer
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.engine.train import train
from radweave.inference.bulk import generate_split
from radweave.inference.predictor import Predictor
from radweave.methods import load_method, resolve
from radweave.methods.experiment import BuildContext
from radweave.methods.stage import OptimizerConfig, StageConfig, apply_finetune
from radweave.nn.global_batch import gather_batch, mean_over_batch, one_slice_of, symmetric_info_nce
from tests.toys import TOY_OVERRIDES, TOY_SIZES

OVERRIDES = [
    *TOY_OVERRIDES,
    *TOY_SIZES["baseline"],
    # Random numbers inside the model are the rank's own: without them the runs are comparable.
    "model.language_model.dropout=0",
    "model.language_model.token_dropout=0",
    "stages.report.batch_size=5",
    "stages.report.epochs=2",
    "stages.report.select=CIDEr",
]
# Reports are drawn by the place of a study in the whole batch, which no slice changes.
REWARDED = [
    *OVERRIDES,
    "stages.report.epochs=1",
    "stages.report.select=last",
    "stages.reward.epochs=2",
    "stages.reward.batch_size=5",
    "stages.reward.select=last",
    "stages.reward.optimizer.warmup_steps=0",
    "decoding.max_new_tokens=12",
]
# With dropout: a resumed job must draw the same numbers again.
WITH_DROPOUT = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=6", "stages.report.checkpoint_every=3"]
# Terms whose input is made of random numbers inside the model: the ranks draw their own, as with dropout.
DRAWN = {"text_in_context"}


class TwoTowers(nn.Module):
    """Batch norm, a learned scalar, a contrast over studies, a mean over items that studies hold unevenly."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tower = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(8, 4))
        self.other = nn.Linear(6, 4)
        self.scale = nn.Sequential()
        self.scale.register_parameter("temperature", nn.Parameter(torch.tensor(0.5)))

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        values, mask = batch.pixel_values, batch.view_mask
        assert values is not None
        assert mask is not None
        left, right = self.tower(values).mean(1), self.other(values).mean(1)
        out = {"contrast": symmetric_info_nce(left, right, self.scale.temperature)}  # type: ignore[arg-type]
        errors = (left - values[:, 0, :4]).square() * mask
        out["items"] = mean_over_batch(errors.sum(), mask.sum())
        out["studies"] = (right - left).square().sum(1).mean()
        # What a method may do with the rows of all ranks, also where there is no gradient.
        out["rows"] = gather_batch(left).norm() * gather_batch(mask).float().mean()
        return {name: out[name] for name in terms}


class Numbers:
    """Batches of 7, 5 and 1 studies: uneven slices, and one that cannot be cut in two."""

    sizes = (7, 5, 1)
    steps_per_epoch = 3

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def part(self, step: int) -> Slice:
        return Slice.of(self.sizes[step], self.ranks.rank, self.ranks.size)

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        for step in range(first_step, self.steps_per_epoch):
            generator = torch.Generator().manual_seed(100 * epoch + step)
            part, total = self.part(step), self.sizes[step]
            own = slice(part.first, part.first + part.count)
            names = [f"s{number}" for number in range(total)]
            values = torch.randn(total, 3, 6, generator=generator)
            mask = torch.rand(total, 4, generator=generator) < torch.linspace(0.2, 1, total)[:, None]
            yield Batch(names[own], names[own], pixel_values=values[own], view_mask=mask[own])


def fit(folder: Path, ranks: Ranks, parallel: Parallel) -> dict[str, Any]:
    """Losses per step, and the weights at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    ranks.wait()
    terms = {"contrast": 1.0, "items": 0.7, "studies": 0.5, "rows": 0.1}
    model = TwoTowers()
    config = StageConfig(
        finetune={"tower": "full", "other": "full", "scale": "full"},
        losses=terms,
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2, max_grad_norm=0.5),
        epochs=4,
        select="last",
    )
    trainer = StageTrainer(
        model=model, stage=config, batches=Numbers(ranks), name="fit", seed=5, folder=folder,
        validate=lambda: {"loss": 0.0}, fingerprint="f", ranks=ranks, parallel=parallel,
    )  # fmt: skip
    trainer.run()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [[row[name] for name in ("loss", *terms)] for row in rows if "loss" in row]
    return {"losses": losses, "weights": {name: value.tolist() for name, value in model.state_dict().items()}}


def gradient_errors(ranks: Ranks, dataset_path: Path) -> dict[str, float]:
    """Per method and stage, how far added-up gradients of slices are from those of the whole batch, relative."""
    errors = {}
    for method, sizes in TOY_SIZES.items():
        preset = "tiny-xray" if "tiny-xray" in load_method(method).PRESETS else "tiny"
        if preset == "tiny-xray":  # its toy sizes are those of scans
            sizes = [size for size in sizes if not size.startswith(("data.ct", "model.vision_encoder"))]
        experiment = resolve(method, preset, [*TOY_OVERRIDES, *sizes])
        dataset = Dataset.open(dataset_path)
        tokenizer = experiment.data.tokenizer.build(study.report or "" for study in dataset.studies("train"))
        classes = CLASSES[experiment.data.label_set]
        model = experiment.model.build(BuildContext(tokenizer, experiment.data.image_size, classes)).eval()
        cache = build_cache(dataset, size=experiment.data.image_size)
        studies = prepare(dataset, "train", experiment, tokenizer, cache, need_text=True).examples[:5]
        # The third study has no labels; the others differ.
        states = [None if row == 2 else tuple((row * place) % 4 for place in range(len(classes))) for row in range(5)]
        examples = [replace(one, class_states=state) for one, state in zip(studies, states, strict=True)]
        part = Slice.of(5, ranks.rank, ranks.size)
        for name, stage in experiment.named_stages().items():
            losses = {term: weight for term, weight in stage.losses.items() if term not in DRAWN}
            if not losses:
                continue
            apply_finetune(model, stage.finetune)
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            grads = []
            for piece in (None, part):
                own = slice(0, 5) if piece is None else slice(piece.first, piece.first + piece.count)
                batch = collate(examples[own], pad_id=int(tokenizer.pad_token_id), views=2)
                model.zero_grad(set_to_none=True)
                replica = make_replica(model, losses, Ranks() if piece is None else ranks)
                with one_slice_of(piece):
                    replica.backward(replica.losses(batch)[0], piece)
                grads.append(torch.cat([p.grad.flatten() for p in trained if p.grad is not None]))
            errors[f"{method} {name}"] = float((grads[0] - grads[1]).norm() / grads[0].norm())
    return errors


class Picks(nn.Module):
    """Three parts, of which a slice uses those that it names."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("both", "first", "never"):
            self.add_module(name, nn.Linear(2, 1, bias=False))

    def loss(self, batch: Batch, terms: Sequence[str]) -> dict[str, Tensor]:
        assert batch.pixel_values is not None
        used = [self.both, *([self.first] if batch.study_ids[0] == "s0" else [])]
        return {"sum": torch.stack([part(batch.pixel_values).mean() for part in used]).sum()}


def gradients_of_parts(ranks: Ranks) -> dict[str, Any]:
    """Gradients over two steps of parts that two slices, one rank's or none use; slices of two studies and of one."""
    model, gradients = Picks(), {}
    part = Slice.of(3, ranks.rank, ranks.size)
    values = torch.tensor([[1.0, 2.0], [3.0, 5.0], [8.0, 13.0]])[part.first : part.first + part.count]
    names = [f"s{number}" for number in range(3)][part.first : part.first + part.count]
    replica = make_replica(model, {"sum": 1.0}, ranks)
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        with one_slice_of(part if part.is_cut else None):
            replica.backward(replica.losses(Batch(names, names, pixel_values=values))[0], part)
    for name, parameter in model.named_parameters():
        gradients[name] = None if parameter.grad is None else parameter.grad.tolist()
    return gradients


def refused(dataset: Path, folder: Path) -> str:
    """The error of a training that is to overwrite a foreign folder."""
    folder.mkdir(exist_ok=True)
    (folder / "file").write_text("mine")
    try:
        train("baseline", dataset, folder, overwrite=True)
    except InputError as error:
        return str(error)
    return "nothing"


def sharded_rewards(dataset: Path, folder: Path) -> str:
    """The error of a stage that would draw reports from sharded weights."""
    try:
        train("baseline", dataset, folder, overrides=REWARDED, parallel="fsdp")
    except InputError as error:
        return str(error)
    return "nothing"


def main(out: Path, dataset: Path) -> None:
    results: dict[str, Any] = {}
    with joined_ranks() as ranks:
        for parallel in ("ddp", "fsdp"):
            results[f"fit {parallel}"] = fit(out / "fit" / parallel, ranks, parallel)  # type: ignore[arg-type]
            train("baseline", dataset, out / parallel, overrides=OVERRIDES, parallel=parallel)  # type: ignore[arg-type]
        train("baseline", dataset, out / "rewarded", overrides=REWARDED)
        results["sharded"] = ranks.gather(sharded_rewards(dataset, out / "sharded"))
        results["parts"] = ranks.gather(gradients_of_parts(ranks))
        train("baseline", dataset, out / "whole", overrides=WITH_DROPOUT)
        results["gradients"] = gradient_errors(ranks, dataset)
        results["errors"] = ranks.gather(refused(dataset, out / "taken"))
        run = restore(out / "ddp")
        generate_split(run, Predictor.of(run), dataset, "test", out / "test.jsonl", shard_size=2, ranks=ranks)
    if ranks.is_first:
        (out / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
