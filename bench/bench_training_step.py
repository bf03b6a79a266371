"""What a training step gets out of this CPU: its share of the matrix speed, and the engine beside a plain loop.

    OMP_NUM_THREADS=1 python bench/bench_training_step.py [--methods vdgen,diffvp] [--steps 6] [--studies 96]

Trains each stage of a method's preset (``tiny`` unless told) on phantoms for a few steps. After each step of the
engine the same batch goes through a plain torch loop over a copy of the same modules: losses, backward, clipping,
AdamW, and nothing else. Matrix products of 768 x 768 are timed between the steps. Seconds are CPU seconds, so that
other work on the machine counts as little as it can; all figures are medians.

share    operations of the products and convolutions (``torch.utils.flop_counter``) over seconds, over those of the
         matrix product in the same precision
engine   the engine's step over the plain loop's
written  the engine's step over one that is written with transformers and torch alone: its encoder and connector called
         one after the other, prompt and report spliced by hand, the loss that LlamaForCausalLM gives for labels, and
         torch's AdamW. Only for the baseline's report, and there is no such step for the others
parts    of the plain loop's seconds: forward, backward, clipping, optimiser; beside it what the engine adds by loading
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import (
    FlopCounterMode,
    conv_backward_flop,
    conv_flop,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

import radweave.engine.stages as stages
from radweave.core.batch import Batch, Slice
from radweave.engine.loop import StageTrainer, computes_in_bfloat16
from radweave.engine.train import train
from radweave.methods.baseline.model import BaselineModel
from radweave.methods.stage import apply_finetune, build_optimizer, set_train_mode, total_loss
from radweave.phantom.study import PhantomOptions, write_phantom_dataset

METHODS = ("baseline", "weave", "vdgen", "am_mrg", "dast", "diffrgennet", "diffvp")
SIDE = 768
CPU = torch.device("cpu")


def attention_forward(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def attention_backward(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))


def inside(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, out: Any) -> float:
    """Share of a convolution's products that fall on the grid; those with the zeros around it are left out."""
    share = 1.0
    for axis in range(len(x) - 2):
        length, side, count = x[axis + 2], weight[axis + 2], out[axis + 2]
        places = [
            place * stride[axis] + step * dilation[axis] - padding[axis]
            for place in range(count)
            for step in range(side)
        ]
        share *= sum(0 <= place < length for place in places) / len(places)
    return share


def convolution(
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    *rest: Any,
    out_shape: Any,
) -> int:
    nominal = conv_flop(x, weight, bias, stride, padding, dilation, transposed, out_val=out_shape)
    return int(nominal * inside(x, weight, stride, padding, dilation, out_shape))


def convolution_backward(
    grad: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *rest: Any, out_shape: Any
) -> int:
    nominal = conv_backward_flop(grad, x, weight, bias, stride, padding, dilation, *rest, out_val=out_shape)
    return int(nominal * inside(x, weight, stride, padding, dilation, grad))


COUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_forward,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    torch.ops.aten.convolution: convolution,
    torch.ops.aten.convolution_backward: convolution_backward,
}
"""The CPU's attention kernels, which torch's counter does not know, and convolutions without their padding."""


class Clock:
    """CPU seconds of the pieces of a step, a list for each name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def times(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name].append(time.process_time() - started)

    def median(self, *names: str) -> float:
        """Of the sums of these pieces, the first step left out."""
        steps = zip(*(self.seconds[name][1:] for name in names), strict=True)
        return statistics.median([sum(step) for step in steps])


class Plain:
    """The same step without the engine, on a copy of its model."""

    def __init__(self, trainer: StageTrainer) -> None:
        self.model, self.stage = copy.deepcopy(trainer.model), trainer.stage
        apply_finetune(self.model, self.stage.finetune)
        self.optimizer = build_optimizer(self.model, self.stage.optimizer)
        self.trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.half = computes_in_bfloat16(self.stage.precision, CPU)

    def step(self, batch: Batch, clock: Clock) -> None:
        set_train_mode(self.model, self.stage.finetune)
        self.optimizer.zero_grad(set_to_none=True)
        with clock.times("forward"):
            loss = self.loss(batch)
        with clock.times("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with clock.times("clip"):
            torch.nn.utils.clip_grad_norm_(self.trained, self.stage.optimizer.max_grad_norm)
        with clock.times("optimizer"):
            self.optimizer.step()

    def loss(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return self.forward(batch)

    def forward(self, batch: Batch) -> Tensor:
        return total_loss(self.model.loss(batch, tuple(self.stage.losses)), self.stage.losses)

    def operations(self, batch: Batch) -> int:
        """Of the products and convolutions of one step, in both directions."""
        with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
            self.loss(batch).backward()  # type: ignore[no-untyped-call]
        return int(counter.get_total_flops())


class Written(Plain):
    """The baseline's report step as one writes it with transformers: no word of ours between the modules."""

    def __init__(self, trainer: StageTrainer) -> None:
        super().__init__(trainer)
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4)

    @staticmethod
    def fits(trainer: StageTrainer) -> bool:
        return isinstance(trainer.model, BaselineModel) and list(trainer.stage.losses) == ["report"]

    def forward(self, batch: Batch) -> Tensor:
        model = self.model
        assert isinstance(model, BaselineModel)
        llama = model.language_model.model
        embed, mask = llama.get_input_embeddings(), batch.view_mask
        tokens = batch.vision_tokens
        tokens = model.vision_encoder(batch.pixel_values[mask]).tokens if tokens is None else tokens[mask]
        image = tokens.new_zeros(*mask.shape, tokens.shape[1], embed.embedding_dim)
        image[mask] = model.connector(tokens, batch.view_ids[mask])
        parts, masks = [], []
        for piece in model.prompt.pieces:
            words = image.flatten(1, 2) if isinstance(piece, str) else embed(torch.tensor([piece] * len(mask)))
            there = mask.repeat_interleave(image.shape[2], 1) if isinstance(piece, str) else torch.ones(words.shape[:2])
            parts.append(words)
            masks.append(there.long())
        silent = torch.full((len(mask), sum(part.shape[1] for part in parts)), -100)
        return llama(
            inputs_embeds=torch.cat([*parts, embed(batch.input_ids)], 1),
            attention_mask=torch.cat([*masks, (batch.labels != -100).long()], 1),
            labels=torch.cat([silent, batch.labels], 1),
            use_cache=False,
        ).loss


def product(half: bool, clock: Clock) -> None:
    dtype = torch.bfloat16 if half else torch.float32
    a, b = (torch.randn(SIDE, SIDE).to(dtype) for _ in range(2))
    with clock.times("product"):
        for _ in range(4):
            a @ b


class Between:
    """The batches of a stage; after each step that the engine makes of one, the plain loop makes its own."""

    def __init__(self, batches: Any, trainer: StageTrainer, rows: list[dict[str, Any]]) -> None:
        self.batches, self.trainer, self.rows = batches, trainer, rows
        self.plain, self.clock = Plain(trainer), Clock()
        self.written, self.written_clock = Written(trainer) if Written.fits(trainer) else None, Clock()
        self.operations: list[int] = []

    @property
    def steps_per_epoch(self) -> int:
        return int(self.batches.steps_per_epoch)

    def part(self, step: int) -> Slice:
        return self.batches.part(step)  # type: ignore[no-any-return]

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]:
        steps = self.batches.epoch(epoch, first_step)
        while True:
            with self.clock.times("load"):
                batch = next(steps, None)
            if batch is None:
                self.clock.seconds["load"].pop()
                return
            started = time.process_time()
            try:
                yield batch
            finally:  # after the last step of a stage the loop does not come back for another
                self.clock.seconds["engine"].append(time.process_time() - started)
                self.plain.step(batch, self.clock)
                if self.written is not None:
                    self.written.step(batch, self.written_clock)
                product(self.plain.half, self.clock)
                self.operations.append(self.plain.operations(batch))

    def row(self) -> dict[str, Any]:
        clock = self.clock
        pieces = ("forward", "backward", "clip", "optimizer")
        seconds = clock.median(*pieces)
        written = self.written_clock.median(*pieces) if self.written is not None else math.nan
        peak = 4 * 2 * SIDE**3 / clock.median("product")
        return {
            "stage": self.trainer.name,
            "precision": "bfloat16" if self.plain.half else "float32",
            "ms": 1000 * seconds,
            "share": statistics.median(self.operations[1:]) / seconds / peak,
            "engine": clock.median("engine") / seconds,
            "written": clock.median("engine") / written,
            "peak": peak / 1e9,
            "load": clock.median("load") / seconds,
            **{piece: clock.median(piece) / seconds for piece in pieces},
        }


class Measured(StageTrainer):
    """The engine's trainer, which is measured beside a plain loop."""

    rows: list[dict[str, Any]]

    def run(self) -> Any:
        between = Between(self.batches, self, type(self).rows)
        self.batches = between
        self.validate = dict  # type: ignore[assignment]  # no figure: the stage keeps its last weights
        self.stage = self.stage.model_copy(update={"select": "last"})
        progress = super().run()
        type(self).rows.append(between.row())
        return progress


def measure(
    method: str, preset: str, data: Path, work: Path, steps: int, options: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of a method's stages."""
    Measured.rows = []
    stages.StageTrainer = Measured  # type: ignore[misc]
    overrides = [f"stages.*.max_steps={steps}", "data.keep_stages=false", *options]
    train(method, data, work / f"{method}-{preset}", preset=preset, overrides=overrides)
    return Measured.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", default=",".join(METHODS), help="with commas")
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=6, help="of each stage; the first is not counted")
    parser.add_argument("--studies", type=int, default=96)
    parser.add_argument("options", nargs="*", help="overrides, such as stages.*.precision=float32")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, preset {given.preset}")
    print(
        "| method | stage | precision | ms | share | engine | written | load | forward | backward | clip | optimizer |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for method in given.methods.split(","):
            is_ct = method == "diffvp" and given.preset != "tiny-xray"
            data = work / ("ct" if is_ct else "xray")
            if not data.exists():
                shape = PhantomOptions(prevalence="balanced", volume_size=64, slices=32) if is_ct else PhantomOptions()
                write_phantom_dataset(
                    data, modality="ct" if is_ct else "xray", num_studies=given.studies, seed=0, options=shape
                )
            for row in measure(method, given.preset, data, work, given.steps, given.options):
                print(f"| {method} | {line(row)} |", flush=True)


def line(row: dict[str, Any]) -> str:
    """A row of the table, without the method."""
    first = [
        row["stage"],
        f"{row['precision']} of {row['peak']:.0f} GFLOP/s",
        f"{row['ms']:.0f}",
        f"{row['share']:.0%}",
    ]
    parts = ("engine", "written", "load", "forward", "backward", "clip", "optimizer")
    return " | ".join([*first, *("-" if math.isnan(row[part]) else f"{row[part]:.2f}" for part in parts)])


if __name__ == "__main__":
    main()
