"""The training loop of one stage, which resumes exactly.

All randomness is a function of (seed, step): the order of the studies, augmentation, dropout. A resumed run therefore
ends in the same weights as an unbroken one, bit for bit on one kind of CPU.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from radweave.core.batch import Batch, Slice
from radweave.core.errors import InputError
from radweave.core.stopping import StoppedError, asked_to_stop
from radweave.core.storage import remove_leftovers, write_text
from radweave.engine.checkpoint import OTHER_RUN, keep_newest, load_average, load_checkpoint, save_checkpoint
from radweave.engine.distributed import Objective, Parallel, Ranks, Replica, make_replica
from radweave.methods.model import ReportModel, Withheld, named_parts
from radweave.methods.renamed import STAGE_SEEDS
from radweave.methods.stage import (
    Compiled,
    Precision,
    StageConfig,
    apply_finetune,
    build_optimizer,
    learning_rate,
    set_train_mode,
)
from radweave.nn.encoder_decoder import CrossAttentionLanguageModel
from radweave.nn.global_batch import one_slice_of
from radweave.nn.language_model import CausalLanguageModel, adapters_off, says_nothing


class AveragedWeights:
    """Exponential moving average of the trained weights, used in validation and as the result of a stage.

    a <- d a + (1 - d) w with d = min(decay, (1 + n) / (10 + n)) after update n: early weights count less. Polyak and
    Juditsky, "Acceleration of stochastic approximation by averaging", 1992. Unlike torch's ``AveragedModel`` it copies
    no frozen weights and swaps in place.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.tensors: dict[str, Tensor] = {name: value.detach().clone() for name, value in self._trained.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Average in the weights after update ``number``, from 0."""
        decay = min(self.decay, (1 + number) / (10 + number))
        for name, value in self._trained.items():
            self.tensors[name].lerp_(value, 1 - decay)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Load a saved average."""
        for name, value in tensors.items():
            self.tensors[name].copy_(value)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap the averaged weights into the model within the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def leave(self) -> None:
        """Copy the averaged weights into the model."""
        for name, value in self._trained.items():
            value.copy_(self.tensors[name])

    @torch.no_grad()
    def _swap(self) -> None:
        for name, value in self._trained.items():
            own = value.detach().clone()
            value.copy_(self.tensors[name])
            self.tensors[name].copy_(own)


# torch.compile for the updates of a stage alone: validation, memories and reports stay uncompiled and keep their
# figures.

Writers = CausalLanguageModel | CrossAttentionLanguageModel


def networks(model: ReportModel, which: Compiled) -> list[nn.Module]:
    """Networks to compile: the vision encoder, or also the language models."""
    if which == "nothing":
        return []
    writers = [part for part in named_parts(model).values() if isinstance(part, Writers)]
    return [model.encoder, *(writer.model for writer in writers if which == "networks")]


def refuse_no_compiler(device: torch.device) -> None:
    """Compile a trivial function: a CPU needs a C++ compiler, CUDA needs Triton.

    Raises:
        InputError: with torch's message, for the field ``compiled`` of a stage.
    """
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(2, device=device))
    except Exception as error:  # depends on the machine, not on this code
        message = " ".join(str(error).split())[:200]
        reason, needed = "torch cannot compile on this machine", "a C++ compiler, on a GPU Triton; or nothing"
        raise InputError(reason, field="compiled", got=message, expected=needed) from None


@dataclass(frozen=True, slots=True)
class CompiledNetworks:
    """Networks with their compiled calls; the first pass through each compiles it."""

    calls: tuple[tuple[nn.Module, Callable[..., Any]], ...] = ()

    @classmethod
    def of(cls, model: ReportModel, which: Compiled) -> CompiledNetworks:
        """The compiled networks of a model."""
        return cls(tuple((network, torch.compile(network._call_impl)) for network in networks(model, which)))

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the compiled calls within the block."""
        for network, call in self.calls:
            network._compiled_call_impl = call
        try:
            yield
        finally:
            for network, _ in self.calls:
                network._compiled_call_impl = None


def computes_in_bfloat16(precision: Precision, device: torch.device) -> bool:
    """True if losses are computed in bfloat16; ``auto`` needs hardware support."""
    return precision == "bfloat16" or (precision == "auto" and has_bfloat16(device))


def has_bfloat16(device: torch.device) -> bool:
    """True if the device multiplies bfloat16 itself; emulation is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or capabilities.get("bf16"))


class BatchSource(Protocol):
    """Batches by epoch; see ``radweave.data.loader.StudyLoader``."""

    @property
    def steps_per_epoch(self) -> int: ...

    def part(self, step: int) -> Slice: ...

    def epoch(self, epoch: int = 0, first_step: int = 0) -> Iterator[Batch]: ...


@dataclass(slots=True)
class Watch:
    """Callbacks: ``began(epochs, updates per epoch)``, ``step(step, total, figures)``, ``epoch(epoch, figures)``."""

    began: Callable[[int, int], None] = lambda epochs, updates: None
    step: Callable[[int, int, dict[str, float]], None] = lambda step, total, figures: None
    epoch: Callable[[int, dict[str, float | None]], None] = lambda epoch, figures: None


@dataclass(slots=True)
class Progress:
    """State of a stage: updates done, best validation figure, updates skipped for a non-finite loss."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    skipped: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Update:
    """An update in progress.

    ``part`` is this rank's slice of the batch, None in one process. ``buffers`` are the running statistics before it,
    ``started`` is a time of ``perf_counter``.
    """

    batch: Batch
    device: torch.device
    part: Slice | None
    learning_rate: float
    buffers: dict[str, Tensor]
    started: float


@dataclass(slots=True)
class StageTrainer:
    """Trains one stage of a model by ``run()``.

    The children of ``model`` are the parts that ``stage.finetune`` may name. The run ``folder`` receives checkpoints
    and ``metrics.jsonl``, from which an interrupted stage resumes. ``validate`` returns figures, among them the one
    that the stage selects by. ``fingerprint`` is a hash of configuration and data; other checkpoints are refused. With
    several ``ranks`` each trains on its slice of every batch, all hold the same weights, and the first one writes.
    ``validate`` is called on all ranks and returns the same on all. An ``objective`` adds its loss to the terms.
    ``drafts`` returns [draft, report] of a few studies, which are logged with the figures of each epoch.
    """

    model: ReportModel
    stage: StageConfig
    batches: BatchSource
    name: str
    seed: int
    folder: Path
    validate: Callable[[], dict[str, float]]
    fingerprint: str
    watch: Watch = field(default_factory=Watch)
    ranks: Ranks = field(default_factory=Ranks)
    parallel: Parallel = "ddp"
    objective: Objective | None = None
    drafts: Callable[[], list[tuple[str, str]]] | None = None
    progress: Progress = field(default_factory=Progress)
    replica: Replica = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    average: AveragedWeights | None = field(init=False, default=None)
    compiled: CompiledNetworks = field(init=False, default=CompiledNetworks())
    silent: tuple[nn.Module, ...] = field(init=False, default=())

    def run(self) -> Progress:
        """Train to the end and load the best weights.

        Raises:
            InputError: for a checkpoint that belongs to another run, or a loss that stays non-finite.
            StoppedError: after SIGTERM or SIGINT, when the checkpoint is on disk.
        """
        apply_finetune(self.model, self.stage.finetune)
        if not any(parameter.requires_grad for parameter in self.model.parameters()):
            raise InputError("nothing trains in this stage", field=f"stages.{self.name}.finetune")
        if self.objective is not None:
            self.objective.begin(self.model)
        self._refuse_sharded()
        self.replica = make_replica(self.model, self.stage.losses, self.ranks, self.parallel, self.objective)
        self.optimizer = build_optimizer(self.replica.model, self.stage.optimizer)
        self.compiled = CompiledNetworks.of(self.replica.model, self.stage.compiled)
        if self.stage.ema:
            self.average = AveragedWeights(self.model, self.stage.ema)
        self._resume()
        self._find_silent_adapters()
        per_epoch = self.batches.steps_per_epoch
        self.watch.began(-(-self.total_steps // per_epoch), per_epoch)
        if self.objective is not None and not self.progress.history:
            # Rewards may lead astray: the model as it was stands among the epochs that are chosen from.
            self._judge(-1)
            self._save()
        in_bfloat16 = computes_in_bfloat16(self.stage.precision, next(self.model.parameters()).device)
        with asked_to_stop() as stop_signal:
            while self.progress.step < self.total_steps and not self._has_settled:
                epoch, first = divmod(self.progress.step, per_epoch)
                for batch in self.batches.epoch(epoch, first):
                    update = self._begun(batch)
                    cut = update.part if update.part is not None and update.part.is_cut else None
                    half = torch.autocast(update.device.type, torch.bfloat16, enabled=in_bfloat16)
                    with one_slice_of(cut), self._without_silent_adapters(), self._withheld_inputs():
                        with self.compiled.in_use(), half:
                            loss, terms = self.replica.losses(update.batch)
                        self.replica.backward(loss, update.part)
                    self._end_of_update(update, {"loss": loss, **terms}, epoch)
                    at_end = self.progress.step >= self.total_steps or self.progress.step % per_epoch == 0
                    if at_end:
                        break
                    stop = self._stop_signal(stop_signal())
                    if stop or self.progress.step % self.stage.checkpoint_every == 0:
                        self._save()
                    if stop:
                        raise StoppedError(stop)
                self.replica.collect()
                with nullcontext() if self.average is None else self.average.in_place():
                    self._judge(epoch)
                self._save()
                # Also after the last update, since the next stage may take hours.
                if stop := self._stop_signal(stop_signal()):
                    raise StoppedError(stop)
        self.ranks.wait()
        if self.stage.selected_by is not None and self.progress.best is not None:
            load_checkpoint(self.checkpoints / "best", self.model, None)
        elif self.average is not None:
            self.average.leave()
        self.model.eval()
        return self.progress

    def _find_silent_adapters(self) -> None:
        """Find parts that train without their untrained adapters, which would cost a third of a step for nothing."""
        trained = self.stage.trained
        silent = [n for n, part in named_parts(self.model).items() if trained.get(n) == "base" and says_nothing(part)]
        self.silent = tuple(part for name, part in named_parts(self.replica.model).items() if name in silent)

    @contextmanager
    def _without_silent_adapters(self) -> Iterator[None]:
        with ExitStack() as off:
            for part in self.silent:
                off.enter_context(adapters_off(part))
            yield

    @contextmanager
    def _withheld_inputs(self) -> Iterator[None]:
        if not self.stage.withheld and not self.stage.single_input:
            yield
            return
        model = self.replica.model
        inputs = tuple(name for name in model.inputs if name not in model.absent_inputs)
        single = self.stage.single_input if len(inputs) > 1 else 0.0
        with model.reading_by(Withheld(self.stage.withheld, single, inputs)):
            yield

    def _refuse_sharded(self) -> None:
        """Refuse options that do not work on sharded weights."""
        if self.ranks.size == 1 or self.parallel != "fsdp":
            return
        if self.objective is not None:
            reason = "a language model whose weights are spread over processes draws no reports"
            raise InputError(reason, field=f"stages.{self.name}", got=self.parallel, expected="--parallel ddp")
        for option, off, reason in (
            ("compiled", "nothing", "networks that are spread over processes are not compiled"),
            ("ema", 0, "weights that are spread over processes are not averaged over updates"),
        ):
            if (value := getattr(self.stage, option)) != off:
                expected = f"{off}, or --parallel ddp"
                raise InputError(reason, field=f"stages.{self.name}.{option}", got=value, expected=expected)

    def _stop_signal(self, number: int) -> int:
        """The signal received by any rank; 0 for none."""
        return max(self.ranks.gather(number)) if self.ranks.any(number > 0) else 0

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints" / self.name

    @property
    def total_steps(self) -> int:
        total = self.stage.epochs * self.batches.steps_per_epoch
        return total if self.stage.max_steps is None else min(total, self.stage.max_steps)

    @property
    def _has_settled(self) -> bool:
        """True after ``patience`` epochs without improvement."""
        patience, done = self.stage.patience, self.progress.step // self.batches.steps_per_epoch
        best = self.progress.best_step // self.batches.steps_per_epoch
        return patience is not None and self.progress.best is not None and done - best >= patience

    def _begun(self, batch: Batch) -> Update:
        """Prepare the forward pass: seed, modes, learning rate, batch on the device."""
        started, step = time.perf_counter(), self.progress.step
        model = self.replica.model
        part = None if self.ranks.size == 1 else self.batches.part(step % self.batches.steps_per_epoch)
        set_train_mode(model, self.stage.finetune)
        torch.manual_seed(_step_seed(self.seed, self.name, step, 0 if part is None else part.first))
        rate = learning_rate(step, self.total_steps, self.stage.optimizer)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        device = next(model.parameters()).device
        self.optimizer.zero_grad(set_to_none=True)
        return Update(batch.to(device), device, part, rate, buffers, started)

    def _end_of_update(self, update: Update, terms: dict[str, Tensor], epoch: int) -> None:
        """Make the optimiser step, or skip a non-finite one; then log."""
        norm = self.replica.clip_gradients(self.stage.optimizer.max_grad_norm)
        weight = 1.0 if update.part is None else update.part.weight(self.ranks.size)
        sums = self.ranks.sum([weight * float(term.detach()) for term in terms.values()])
        figures = dict(zip(terms, sums, strict=True))
        if math.isfinite(figures["loss"]) and math.isfinite(norm):
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.progress.step)
        else:
            self._skip(update.batch, update.buffers)
        self.progress.step += 1
        figures["learning_rate"] = update.learning_rate
        studies = len(update.batch) if update.part is None else update.part.total
        figures["studies_per_s"] = round(studies / (time.perf_counter() - update.started), 2)
        self._append({"step": self.progress.step, "epoch": epoch, **figures})
        self.watch.step(self.progress.step, self.total_steps, figures)

    def _skip(self, batch: Batch, buffers: dict[str, Tensor]) -> None:
        """Keep the weights and restore running statistics of a non-finite batch."""
        with torch.no_grad():
            for name, value in self.replica.model.named_buffers():
                value.copy_(buffers[name])
        self.progress.skipped += 1
        study_ids = [study_id for ids in self.ranks.gather(batch.study_ids) for study_id in ids]
        if self.progress.skipped > self.stage.max_skipped_steps:
            raise InputError(
                f"the loss or its gradient is not finite at step {self.progress.step + 1}, and "
                f"{self.stage.max_skipped_steps} steps were skipped already",
                field="studies of this batch",
                got=", ".join(study_ids[:16]),
            )

    def _judge(self, epoch: int) -> None:
        """Validate the model; save it if it is the best so far."""
        self.model.eval()
        figures = _finite(self.validate())
        self.progress.history.append({"epoch": epoch, "step": self.progress.step, **figures})
        shown = {} if self.drafts is None or not self.ranks.is_first else {"drafts": self.drafts()}
        self._append({"step": self.progress.step, "epoch": epoch, "validation": figures, **shown})
        if self.stage.selected_by is not None:
            value = figures[self.stage.selected_by]
            value = -value if self.stage.lower_is_better and value is not None else value
            if value is not None and (self.progress.best is None or value > self.progress.best):
                self.progress.best, self.progress.best_step = value, self.progress.step
                state = {"fingerprint": self.fingerprint, "step": self.progress.step}
                save_checkpoint(self.checkpoints / "best", self.model, None, state, writes=self.ranks.is_first)
        self.watch.epoch(epoch, figures)

    def _save(self) -> None:
        state = {"fingerprint": self.fingerprint, "progress": self.progress.as_dict()}
        path = self.checkpoints / f"step-{self.progress.step:08d}"
        self.replica.collect()
        average = None if self.average is None else self.average.tensors
        save_checkpoint(path, self.model, self.optimizer, state, average=average, writes=self.ranks.is_first)
        if self.ranks.is_first:
            keep_newest(self.checkpoints, self.stage.keep_checkpoints)

    def _resume(self) -> None:
        """Resume from the newest whole checkpoint, the same on all ranks."""
        self._load_newest()
        self.ranks.refuse_difference("checkpoints", self.progress.step)
        self.replica.spread()
        if self.ranks.is_first:
            self._rewind_metrics()

    def _load_newest(self) -> None:
        broken: list[str] = []
        for path in sorted(self.checkpoints.glob("step-*"), reverse=True):
            try:
                state = load_checkpoint(path, self.model, self.optimizer)
                if self.average is not None:
                    self.average.restore(load_average(path))
            except InputError as error:
                broken.append(str(error))
                continue
            if state["fingerprint"] != self.fingerprint:
                raise InputError(OTHER_RUN, file=path)
            self.progress = Progress(**state["progress"])
            return
        if broken:
            raise InputError(f"no checkpoint can be read: {broken[0]}", file=self.checkpoints)

    def _rewind_metrics(self) -> None:
        """Drop log lines after the checkpoint, whose steps are repeated, and leftovers of killed writers."""
        remove_leftovers(self.folder)
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return
        lines = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # half a line, left by a killed run
                continue
            is_current = row["step"] <= self.progress.step and bool(self.progress.history or row["step"])
            if row["stage"] != self.name or is_current:
                lines.append(line + "\n")
        write_text(path, "".join(lines))

    def _append(self, row: dict[str, Any]) -> None:
        if not self.ranks.is_first:
            return
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite({"stage": self.name, **row})) + "\n")


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: such values become null."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def _step_seed(seed: int, name: str, step: int, first: int) -> int:
    """Seed of random numbers inside the model; slices with another first study have another seed."""
    name = STAGE_SEEDS.get(name, name)
    return (seed * 1_000_003 + sum(name.encode()) * 7919 + first * 15_485_863 + step) & 0x7FFFFFFF


def use_deterministic_kernels() -> None:
    """Use deterministic kernels, so that a resumed run equals an unbroken one.

    Torch's filling of uninitialised memory is off: nothing reads it, and filling takes a tenth of a step on a CPU.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms(True, warn_only=True), which also reads torch's compiler: 1.3 s.
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
