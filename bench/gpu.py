"""What only an accelerator can tell, in one command: does it compute what the CPU does, in how much memory, how fast.

    python bench/gpu.py --out gpu                       # on a machine with a CUDA device
    python bench/gpu.py --out gpu --compiled all --minutes 60                  # every method compiled as well
    python bench/gpu.py --out gpu --device standin --minutes 60   # the same program on the tests' stand-in, to its end

Needs no network and no data: data sets are made up. Parts run one after the other; one that fails is written down with
its reason and the others go on. ``gpu.json`` and ``gpu.md`` are written after each part, so that a stop loses nothing.
The exit code is 1 where a check failed, 0 otherwise. After ``--minutes`` no further part begins; the rest is listed as
not run, and that is a failure too.

Tolerances of a training curve, the largest difference of one step's loss over the CPU's loss at that step:
float32 0.01 (sums in another order, which AdamW's first steps magnify; TF32 is off), bfloat16 0.05 (8 bits of
mantissa), compiled 0.01.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from radweave.core.devices import VARIABLE  # noqa: E402
from tests.fake_device import NAME as STANDIN  # noqa: E402
from tests.fake_device import crossings, standing_in  # noqa: E402
from tests.toys import TOY_OVERRIDES, TOY_SIZES, write_toy_dataset  # noqa: E402

TOLERANCES = {"float32": 0.01, "bfloat16": 0.05, "compiled": 0.01}
COMPILED = "baseline"
"""The method that trains compiled too, unless told: the compiler takes longer than all other parts would."""
PEAK_BF16 = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bfloat16 operations a second that the vendor states, by a word of the device's name."""
PEAK_BYTES = {"H100": 3.35e12, "H200": 4.8e12, "A100": 2.0e12}
"""Bytes a second of the device's memory, likewise (SXM parts)."""


@dataclass
class Part:
    """What one part of the program found. ``figures`` are of this machine, ``failed`` is the reason or None."""

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None
    seconds: float = 0.0


@dataclass
class Job:
    """The machine, where things lie, and how large they are made."""

    device: torch.device
    work: Path
    smallest: bool
    only: tuple[str, ...]
    compiled: tuple[str, ...] = (COMPILED,)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def methods(self) -> list[str]:
        return [name for name in (self.only or TOY_SIZES) if name in TOY_SIZES]

    def data(self, method: str) -> Path:
        """The made-up data set that a method reads, written on first use."""
        is_ct = any(option.startswith("data.ct.size") for option in TOY_SIZES[method])
        folder = self.work / ("scans" if is_ct else "radiographs")
        if folder.exists():
            return folder
        if not is_ct:
            write_toy_dataset(folder, self.work / "sources")
        else:
            from radweave.phantom.study import PhantomOptions, write_phantom_dataset

            options = PhantomOptions(prevalence="balanced", volume_size=16, slices=8)
            write_phantom_dataset(folder, modality="ct", num_studies=24, seed=0, options=options)
        return folder

    def wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def best(self, work: Callable[[], Any], rounds: int = 5) -> float:
        """Seconds of the fastest of some rounds, after one to warm up."""
        work()
        self.wait()
        found = []
        for _ in range(1 if self.smallest else rounds):
            started = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - started)
        return min(found)

    def share(self, value: float, peaks: dict[str, float]) -> float | None:
        """Of what the vendor states for this device; None where it is not known."""
        name = torch.cuda.get_device_name() if self.is_cuda else ""
        return next((round(value / peak, 4) for word, peak in peaks.items() if word in name), None)


@contextmanager
def running_on(name: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None) if before is None else os.environ.update({VARIABLE: before})


def curve(job: Job, method: str, device: str, *options: str) -> tuple[Path, dict[str, list[float]]]:
    """A toy training of the method on a device: its run folder, and the losses of the steps of each stage."""
    from radweave.engine.train import train

    folder = job.work / "runs" / f"{method}-{device.replace(':', '')}-{len(list((job.work / 'runs').glob('*')))}"
    # An update that is skipped has a gradient that is no number: that is no curve, however near the losses lie.
    always = ("stages.report.epochs=1", "stages.*.max_skipped_steps=0", "data.keep_stages=false")
    overrides = [*TOY_OVERRIDES, *TOY_SIZES[method], *always, *options]
    with running_on(device):
        train(method, job.data(method), folder, overrides=overrides)
    losses: dict[str, list[float]] = {}
    path = folder / "metrics.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        row = json.loads(line)
        if "loss" in row:
            losses.setdefault(row["stage"], []).append(row["loss"] if row["loss"] is not None else math.nan)
    return folder, losses


def apart(ours: dict[str, list[float]], theirs: dict[str, list[float]]) -> float:
    """The largest relative difference of a step's loss; infinite where the steps are not the same."""
    if {name: len(values) for name, values in ours.items()} != {name: len(values) for name, values in theirs.items()}:
        return math.inf
    pairs = [pair for name in theirs for pair in zip(ours[name], theirs[name], strict=True)]
    found = [abs(a - b) / max(abs(b), 1e-6) for a, b in pairs]
    return math.inf if any(math.isnan(value) for value in found) else max(found, default=0.0)


def train_part(method: str) -> Callable[[Job], dict[str, Any]]:
    def part(job: Job) -> dict[str, Any]:
        """Curves against the CPU's, the run restored on the device, a report of each kind of decoding."""
        _, reference = curve(job, method, "cpu")
        kinds: dict[str, tuple[str, ...]] = {"float32": ()}
        if not job.smallest:
            kinds["bfloat16"] = ("stages.*.precision=bfloat16",)
        if job.is_cuda and method in job.compiled and not job.smallest:
            kinds["compiled"] = ("stages.*.compiled=networks",)
        figures: dict[str, Any] = {}
        for kind, options in kinds.items():
            crossings.clear()
            if job.is_cuda:
                torch.cuda.reset_peak_memory_stats()
            folder, losses = curve(job, method, str(job.device), *options)
            figures[kind] = {"apart": apart(losses, reference), "steps": sum(map(len, losses.values()))}
            if job.is_cuda:
                figures[kind]["peak_bytes"] = torch.cuda.max_memory_allocated()
            elif crossings:
                figures[kind]["crossings"] = dict(crossings)
        figures["reports"] = drafts(job, folder, method)
        far = [kind for kind in kinds if figures[kind]["apart"] > TOLERANCES[kind]]
        if far:
            raise CheckError(f"the curve of {', '.join(far)} is further from the CPU's than the tolerance", figures)
        return figures

    part.__name__ = f"train {method}"
    return part


def drafts(job: Job, folder: Path, method: str) -> dict[str, int]:
    """Words of a draft of one study by each way of decoding, by the run as it is restored on the device."""
    from radweave.data.dataset import Dataset
    from radweave.engine.restore import restore
    from radweave.inference.explain import explain_files
    from radweave.inference.features import build_feature_bank
    from radweave.inference.predictor import Predictor

    dataset = Dataset.open(job.data(method))
    image = dataset.image_path(next(iter(dataset.studies("test"))).images[0].path)
    ways = {"greedy": ["kind=likelihood", "num_beams=1"], "utility": ["kind=expected_utility"]}
    if not job.smallest:
        ways |= {"beams": ["kind=likelihood", "num_beams=3"], "sampled": ["kind=likelihood", "do_sample=true"]}
    found = {}
    with running_on(str(job.device)):
        run = restore(folder)
        for name, options in ways.items():
            report = Predictor.of(run, decoding=options).report([image], force=True)
            found[name] = len(report.text.split())
        if not job.smallest:
            explain_files(run, Predictor.of(run), [image], folder.with_name(f"{folder.name}-page"), force=True)
            build_feature_bank(run, dataset.path, "test", folder.with_name(f"{folder.name}-bank"))
    return found


class CheckError(Exception):
    """A check that failed, with what was measured."""

    def __init__(self, reason: str, figures: dict[str, Any]) -> None:
        super().__init__(reason)
        self.figures = figures


def contract_suite(job: Job) -> dict[str, Any]:
    """The tests that all methods pass, in a process whose models are on the device."""
    if job.smallest or not job.is_cuda:
        return {"not run": "tests/contract runs with the suite; on a CUDA device it runs here"}
    command = [sys.executable, "-m", "pytest", "tests/contract", "tests/engine/test_precision.py", "-q", "-x",
               "-m", "not slow", "-n", str(min(8, os.cpu_count() or 1))]  # fmt: skip
    if subprocess.run([sys.executable, "-c", "import xdist"], capture_output=True, check=False).returncode:
        command = command[:-2]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, VARIABLE: str(job.device), "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
    tail = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    if done.returncode:
        raise CheckError("tests failed on the device", {"said": done.stdout[-3000:]})
    return {"said": tail[0]}


def scan_arguments(device: torch.device, *shape: int) -> list[Tensor]:
    batch, groups, tokens, channels, states = shape
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator)

    u, step = draw(batch, groups, tokens, channels), draw(batch, groups, tokens, channels)
    rates = -0.1 - torch.rand(groups, channels, states, generator=generator) * states
    B, C = draw(batch, groups, tokens, states), draw(batch, groups, tokens, states)
    values = [u, torch.sigmoid(step), rates, B, C, draw(groups, channels)]
    return [value.to(device).requires_grad_() for value in values]


def selective_scan_part(job: Job) -> dict[str, Any]:
    """Every back-end against the equation, then time and share of the memory's bandwidth at VMamba's sizes."""
    from radweave.nn.selective_scan import ScanBackend, selective_scan

    def both(values: list[Tensor], backend: ScanBackend) -> list[Tensor]:
        output = selective_scan(*values, backend=backend)
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.device)
        return [output.detach(), *torch.autograd.grad((output * weights).sum(), values)]

    small = (1, 2, 9, 3, 2) if job.smallest else (2, 4, 300, 48, 3)
    cpu = torch.device("cpu")
    exact = both([value.detach().double().requires_grad_() for value in scan_arguments(cpu, *small)], "loop")
    figures: dict[str, Any] = {"apart": {}}
    backends: list[ScanBackend] = ["chunked", "triton"] if job.is_cuda else ["chunked"]
    for backend in backends:
        ours = both(scan_arguments(job.device, *small), backend)
        scales = [max(1.0, float(value.abs().max())) for value in exact]
        pairs = zip(ours, exact, scales, strict=True)
        figures["apart"][backend] = max(float((a.cpu().double() - b).abs().max()) / scale for a, b, scale in pairs)
    large = (1, 4, 16, 8, 1) if job.smallest or not job.is_cuda else (16, 4, 3136, 96, 1)
    for backend in backends:
        values = scan_arguments(job.device, *large)
        seconds = job.best(lambda values=values, backend=backend: both(values, backend))
        # Read once forward and once backward, with the output, its gradient and those of the arguments.
        least = sum(value.numel() * value.element_size() for value in values) * 3 + 3 * values[0].numel() * 4
        figures[backend] = {"seconds": seconds, "bandwidth_share": job.share(least / seconds, PEAK_BYTES)}
    if max(figures["apart"].values()) > 1e-5:
        raise CheckError("a back-end is further from the equation than 1e-5", figures)
    return figures


def nearest(job: Job) -> dict[str, Any]:
    """Exact search: the same neighbours as on the CPU, and queries a second."""
    from radweave.nn.memory.bank import Owners
    from radweave.nn.memory.index import ExactIndex

    rows, dim, count = (300_000, 512, 256) if job.is_cuda and not job.smallest else (200, 16, 4)
    generator = torch.Generator().manual_seed(0)
    vectors, queries = (torch.randn(size, dim, generator=generator) for size in (rows, count))
    owners = Owners([f"s{number}" for number in range(rows)], [f"p{number}" for number in range(rows)])
    asked = [f"q{number}" for number in range(count)]
    found = {}
    for name, device in (("cpu", torch.device("cpu")), ("device", job.device)):
        index, there = ExactIndex(vectors.to(device), owners), queries.to(device)
        found[name] = index.search(there, 10, study_ids=asked, patient_ids=asked)[1].cpu()
    seconds = job.best(lambda: index.search(there, 10, study_ids=asked, patient_ids=asked), rounds=2)
    same = bool((found["cpu"] == found["device"]).all())
    figures = {"rows": rows, "dim": dim, "queries_per_s": round(count / seconds, 1), "same_rows_as_cpu": same}
    if not same:
        raise CheckError("other neighbours than on the CPU", figures)
    return figures


def network(job: Job) -> tuple[Any, Any, Any]:
    """The baseline at the size of its small preset (of the toys on the stand-in), a batch, and its experiment."""
    from radweave.core.batch import Batch
    from radweave.engine.estimate import build_on_meta
    from radweave.methods import resolve

    toys = job.smallest or not job.is_cuda
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"]] if toys else []
    experiment = resolve("baseline", "tiny" if toys else "small", overrides)
    model = build_on_meta(experiment).to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.normal_(std=0.02).abs_() if tensor.ndim < 2 else tensor.normal_(std=0.02)
            else:
                tensor.zero_()
    data = experiment.data
    count = 2 if toys else list(experiment.named_stages().values())[-1].batch_size
    ids = torch.randint(3, 200, (count, data.max_tokens))
    names = [f"s{number}" for number in range(count)]
    batch = Batch(
        names, names, pixel_values=torch.rand(count, 1, 1, data.image_size, data.image_size),
        view_mask=torch.ones(count, 1, dtype=torch.bool), view_ids=torch.ones(count, 1, dtype=torch.long),
        input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids.clone(),
    )  # fmt: skip
    return model.to(job.device), batch, experiment


def training_step(job: Job) -> dict[str, Any]:
    """Seconds of an update, its share of the device's bfloat16 peak, peak memory beside the estimate; compiled too."""
    from radweave.engine.estimate import estimate_of
    from radweave.methods.stage import build_optimizer, total_loss

    model, batch, experiment = network(job)
    stage = list(experiment.named_stages().values())[-1]
    weights = {"report": 1.0}
    optimizer = build_optimizer(model.train(), stage.optimizer)
    figures: dict[str, Any] = {"studies": len(batch), "parameters": sum(p.numel() for p in model.parameters())}

    def update(loss_of: Callable[..., Any], half: bool) -> Tensor:
        moved = batch.to(job.device)
        with torch.autocast(job.device.type, torch.bfloat16, enabled=half):
            loss = total_loss(loss_of(moved, ("report",)), weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    # Two operations a weight and token forward, four backward; the report's and the image's tokens count alike.
    tokens = batch.input_ids.numel() + len(batch) * 64
    operations = 6 * sum(p.numel() for p in model.language_model.parameters()) * tokens
    kinds: dict[str, tuple[Callable[..., Any], bool]] = {
        "float32": (model.loss, False), "bfloat16": (model.loss, True)
    }  # fmt: skip
    if job.is_cuda and not job.smallest:
        # The two large parts alone: their shapes stay the same, the splicing between them is Python.
        model.encoder.compile()
        model.language_model.model.compile()
        kinds["bfloat16 compiled"] = (model.loss, True)
    for name, (loss_of, half) in kinds.items():
        if job.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        seconds = job.best(lambda loss_of=loss_of, half=half: update(loss_of, half))
        figures[name] = {"seconds": seconds, "studies_per_s": round(len(batch) / seconds, 1)}
        figures[name]["language_model_share_of_bf16_peak"] = job.share(operations / seconds, PEAK_BF16)
        if job.is_cuda:
            figures[name]["peak_bytes"] = torch.cuda.max_memory_allocated()
    figures["estimate"] = {"bytes": estimate_of(experiment).training, "studies": stage.batch_size}
    return figures


def writing(job: Job) -> dict[str, Any]:
    """Studies a second of greedy decoding, and whether a batch writes what each study alone does."""
    model, batch, experiment = network(job)
    model.eval()
    decoding = experiment.decoding.model_copy(
        update={"kind": "likelihood", "num_beams": 1, "max_new_tokens": 4 if job.smallest else 60}
    )
    moved = batch.to(job.device)
    seconds = job.best(lambda: model.generate(moved, decoding), rounds=2)
    together = model.generate(moved, decoding).token_ids
    alone = [model.generate(moved.only([row]), decoding).token_ids[0] for row in range(2)]
    figures = {
        "studies": len(batch),
        "studies_per_s": round(len(batch) / seconds, 2),
        "tokens": decoding.max_new_tokens,
    }
    figures["alone_as_in_a_batch"] = together[:2] == alone
    return figures


def facts(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"device": str(job.device), "torch": torch.__version__, "python": platform.python_version()}
    if job.is_cuda:
        found |= {"name": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        found["memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
    return found


def write(out: Path, job: Job, parts: list[Part]) -> None:
    """The JSON and the page of what is known so far."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [{"name": p.name, "failed": p.failed, "seconds": round(p.seconds, 1), "figures": p.figures} for p in parts]
    known = {"machine": facts(job), "tolerances": TOLERANCES, "parts": rows}
    (out / "gpu.json").write_text(json.dumps(known, indent=1, default=str) + "\n", encoding="utf-8")
    lines = [f"# On {known['machine'].get('name', job.device)}", ""]
    lines += ["| part | result | s | figures |", "|---|---|---|---|"]
    for row in rows:
        figures = json.dumps(row["figures"], default=str).replace("|", "/")[:600]
        lines.append(f"| {row['name']} | {row['failed'] or 'passed'} | {row['seconds']} | `{figures}` |")
    (out / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_parts(job: Job, out: Path, minutes: float) -> list[Part]:
    """Every part, each on its own: what one raises is its result."""
    plan: list[tuple[str, Callable[[Job], dict[str, Any]]]] = [
        ("selective scan", selective_scan_part), ("nearest", nearest),
        *((f"train {method}", train_part(method)) for method in job.methods),
        ("training step", training_step), ("writing", writing), ("contract suite", contract_suite),
    ]  # fmt: skip
    parts: list[Part] = []
    began = time.perf_counter()
    for name, work in plan:
        part, started = Part(name), time.perf_counter()
        if started - began > 60 * minutes:
            part.failed = f"not run: {minutes:g} minutes were over"
        else:
            try:
                part.figures = work(job)
            except CheckError as error:
                part.failed, part.figures = str(error), error.figures
            except Exception as error:  # whatever it is, the other parts go on
                part.failed = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            part.seconds = time.perf_counter() - started
        parts.append(part)
        print(f"{part.seconds:7.1f} s  {name}: {part.failed or 'passed'}", flush=True)
        write(out, job, parts)
    return parts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smallest", action="store_true", help="the least of every part")
    parser.add_argument("--methods", default="", help="some methods alone, with commas")
    parser.add_argument("--compiled", default=COMPILED, help="methods that train compiled too, with commas; or all")
    parser.add_argument("--minutes", type=float, default=7.0)
    given = parser.parse_args(arguments)
    torch.backends.cudnn.allow_tf32 = False  # float32 is compared with the CPU's
    only = tuple(filter(None, given.methods.split(",")))
    compiled = tuple(TOY_SIZES) if given.compiled == "all" else tuple(given.compiled.split(","))
    # With the stand-in registered, autograd takes it for the accelerator and waits for its streams instead of CUDA's.
    stand = standing_in() if given.device == STANDIN else nullcontext(torch.device(given.device))
    with tempfile.TemporaryDirectory() as work, stand as device:
        if given.device != STANDIN and not torch.cuda.is_available():
            print(f"there is no CUDA device here; --device {STANDIN} runs the program without one", file=sys.stderr)
            return 2
        parts = run_parts(Job(device, Path(work), given.smallest, only, compiled), given.out, given.minutes)
    return int(any(part.failed for part in parts))


if __name__ == "__main__":
    sys.exit(main())
