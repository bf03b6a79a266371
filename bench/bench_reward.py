"""Seconds of a step of the stage that rewards drafts, beside a likelihood step, and reports per second of each reward.

    OMP_NUM_THREADS=1 python bench/bench_reward.py [--data DATA] [--run RUN] [--steps 6]

Without RUN the baseline's ``tiny`` first trains on the data set (drawn, where there is none) for a few passes, so that
its drafts are as long as reports. Then the parts that train in the report stage make a few updates from there: rewards
of 4 samples for each of 16 studies with the defaults of the stage, and the likelihood of 64 reports. Features of the
frozen encoder are computed before. Seconds are CPU seconds; all figures are medians without the first step.

decode    passes of the language model over prompts and words of the reports that are drawn
choose    the rest of drawing them: words by their probability, slots
edit      samples edited towards the reference
reward    rewards of all texts
policy    log-probabilities of the samples, and of the model of before; backward pass; optimiser

Model arithmetic is decode and policy; the ratio is the step over the likelihood step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radweave.core.batch import Batch
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import StudyLoader
from radweave.engine.prepare import prepare, split_view
from radweave.engine.reinforcement import Editor, RewardObjective
from radweave.engine.restore import Run, restore
from radweave.engine.rewards import Rewards, TrainingTexts
from radweave.engine.stages import build_features
from radweave.engine.train import train
from radweave.labels import get_labeler
from radweave.methods.stage import RewardStageConfig, apply_finetune, build_optimizer, set_train_mode, total_loss
from radweave.nn.decoding import KVCache
from radweave.phantom.study import PhantomOptions, write_phantom_dataset

STUDIES, SAMPLES = 16, 4
PASSES = 4
FINDINGS_TEXTS = 20_000


@dataclass(slots=True)
class Clock:
    """CPU seconds of the parts of each step, by name."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds are added to the present step's under this name."""

        def call(*arguments: Any, **options: Any) -> Any:
            started = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name][-1] += time.process_time() - started

        return call

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name][1:])


def trained_run(dataset: Path, out: Path) -> Path:
    """The baseline after a few passes of its report stage."""
    return train("baseline", dataset, out, overrides=[f"stages.report.epochs={PASSES}", "stages.report.select=last"])


@dataclass(slots=True)
class Bench:
    """A trained run, its training split with features, and the stage."""

    run: Run
    dataset: Dataset
    stage: RewardStageConfig
    work: Path

    def batches(self, size: int) -> Iterator[Batch]:
        """Batches of the training split, without end."""
        run, data = self.run, self.run.experiment.data
        cache = build_cache(self.dataset, size=data.image_size, ct=data.ct)
        prepared = prepare(self.dataset, "train", run.experiment, run.tokenizer, cache, need_text=True)
        features = build_features(run.model.encoder, prepared.examples, self.work, {})
        pad_id = int(run.tokenizer.pad_token_id)
        loader = StudyLoader(prepared.examples, size, pad_id, seed=0, shuffle=True, features=features)
        epoch = 0
        while True:
            yield from (batch for batch in loader.epoch(epoch) if len(batch) == size)
            epoch += 1

    def objective(self, clock: Clock) -> RewardObjective:
        """The objective of the stage, its parts timed."""
        run, data = self.run, self.run.experiment.data
        cache = build_cache(self.dataset, size=data.image_size, ct=data.ct)
        prepared = prepare(self.dataset, "train", run.experiment, run.tokenizer, cache, need_text=True)
        view = split_view(
            self.dataset, prepared, classes=run.card.classes, pad_id=int(run.tokenizer.pad_token_id), seed=0
        )
        labeler = get_labeler(data.label_set)
        rewards = Rewards(self.stage.rewards, TrainingTexts.of(view, labeler))
        editor = Editor(labeler)
        rewards.parts = clock.timed("reward", rewards.parts)  # type: ignore[method-assign]
        editor.edit = clock.timed("edit", editor.edit)  # type: ignore[method-assign]
        return RewardObjective(self.stage, rewards, run.tokenizer, run.experiment.decoding, editor)

    def steps(self, clock: Clock, batches: Iterator[Batch], loss: Callable[[Batch], Tensor], steps: int) -> None:
        """Updates of the parts that train, timed as "step"."""
        model = self.run.model
        optimizer = build_optimizer(model, self.stage.optimizer)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

        def step(batch: Batch) -> None:
            set_train_mode(model, self.stage.finetune)
            optimizer.zero_grad(set_to_none=True)
            loss(batch).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained, self.stage.optimizer.max_grad_norm)
            optimizer.step()

        timed = clock.timed("step", step)
        for number in range(steps):
            batch = next(batches)
            for name in ("step", "draw", "decode", "edit", "reward"):
                clock.seconds[name].append(0.0)
            torch.manual_seed(number)
            timed(batch)

    def rewarded(self, steps: int) -> Clock:
        """The parts of steps of the stage."""
        clock, model = Clock(), self.run.model
        objective = self.objective(clock)
        objective.begin(model)
        writer: Any = model.language_model
        writer.write_draws = clock.timed("draw", writer.write_draws)
        for name in ("prefill", "step"):
            setattr(KVCache, name, clock.timed("decode", getattr(KVCache, name)))
        self.steps(clock, self.batches(STUDIES), lambda batch: objective(model, batch)[0], steps)
        return clock

    def likelihood(self, steps: int) -> Clock:
        """Steps of the likelihood of as many reports as the other stage draws."""
        clock, model, losses = Clock(), self.run.model, {"report": 1.0}

        def loss(batch: Batch) -> Tensor:
            return total_loss(model.loss(batch, tuple(losses)), losses)

        self.steps(clock, self.batches(STUDIES * SAMPLES), loss, steps)
        return clock


def texts_per_second(bench: Bench) -> dict[str, float]:
    """Texts per CPU second of each reward, drafts beside references, at one step's size and by the thousand."""
    data = bench.run.experiment.data
    reports = [study.report or "" for study in bench.dataset.studies("train")]
    texts = (reports * (1 + FINDINGS_TEXTS // len(reports)))[:FINDINGS_TEXTS]
    others = texts[7:] + texts[:7]
    training = TrainingTexts(tuple(reports), get_labeler(data.label_set))
    rates = {}
    for name in bench.stage.rewards:
        rewards = Rewards({name: 1.0}, training)
        started = time.process_time()
        for first in range(0, len(texts), STUDIES * SAMPLES):
            part = slice(first, first + STUDIES * SAMPLES)
            rewards.parts(texts[part], others[part])
        rates[name] = len(texts) / (time.process_time() - started)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="a dataset folder; phantoms are drawn without")
    parser.add_argument("--run", type=Path, help="a run on it; one is trained without")
    parser.add_argument("--steps", type=int, default=6, help="of each kind; the first is not counted")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data = given.data or work / "data"
        if given.data is None:
            write_phantom_dataset(data, modality="xray", num_studies=300, seed=0, options=PhantomOptions())
        run = restore(given.run or trained_run(data, work / "run"))
        stages = run.experiment.named_stages()
        stage = RewardStageConfig(
            epochs=1, batch_size=STUDIES, samples=SAMPLES, finetune=stages[run.experiment.report_stage].finetune
        )
        apply_finetune(run.model, stage.finetune)
        bench = Bench(run, Dataset.open(data), stage, work)
        likelihood, rewarded = bench.likelihood(given.steps), bench.rewarded(given.steps)
        step = rewarded.median("step")
        draw, decode, edit, reward = (rewarded.median(name) for name in ("draw", "decode", "edit", "reward"))
        parts = {"decode": decode, "choose": draw - decode, "edit": edit, "reward": reward}
        parts["policy"] = step - draw - edit - reward
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
        print(f"step {step:.3f} s: " + ", ".join(f"{name} {value / step:.0%}" for name, value in parts.items()))
        print(f"model arithmetic {(decode + parts['policy']) / step:.0%} (>= 60 %)")
        print(f"likelihood step {likelihood.median('step'):.3f} s, ratio {step / likelihood.median('step'):.2f} (<= 4)")
        for name, rate in texts_per_second(bench).items():
            print(f"reward {name}: {rate:,.0f} texts a second")


if __name__ == "__main__":
    main()
