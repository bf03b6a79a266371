"""``radweave doctor``."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer

from radweave.core.devices import usable_cores
from radweave.core.extras import EXTRAS, install_line, missing


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
    self_test: Annotated[
        bool, typer.Option(help="Draw, train, draft and score for some seconds, or only look.")
    ] = True,
) -> None:
    """Show versions, devices, extras and disk, and test that a model trains and reports. Exit code 1 for a problem."""
    import json

    from radweave.cli.options import console

    health = examine(self_test=self_test, say=lambda step: console.print(f"self-test: {step}"))
    typer.echo(json.dumps(health.to_json(), indent=2) if as_json else "\n".join(lines(health)))
    if health.problems:
        raise typer.Exit(1)


# What an installation has and whether it works: versions, devices, extras, disk, a self-test.
#
# examine(self_test=True).problems        # sentences; none where all is well


LEAST_FREE_GB = 2.0
"""Of disk: less does not hold the cache and checkpoints of a small run."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class Health:
    """What was found. ``problems`` are sentences about what must be mended; all the rest is for information.

    ``packages`` has the version of each requirement, None where it is missing. ``memory_gb`` is None where the system
    does not say. ``extras`` has the modules that each lacks. ``disk_gb`` is what is free, by place. ``self_test_s`` has
    the seconds of each step that passed, None where it was not asked for.
    """

    radweave: str
    place: str
    python: str
    system: str
    packages: dict[str, str | None]
    devices: list[str]
    default_device: str
    cores: int
    memory_gb: float | None
    java: str | None
    extras: dict[str, list[str]]
    disk_gb: dict[str, float]
    self_test_s: dict[str, float] | None
    problems: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def examine(*, self_test: bool = True, say: Callable[[str], None] = lambda text: None) -> Health:
    """Look at this installation; ``say`` is told of each step of the self-test as it begins."""
    problems: list[str] = []
    packages = _packages()
    problems += [f"{name} is not installed: pip install {name}" for name, found in packages.items() if found is None]
    devices, default = _devices(problems)
    disk = _disk(problems)
    times: dict[str, float] | None = None
    if self_test and not problems:
        times = {}
        try:
            run_self_test(times, say)
        except Exception as error:  # whatever it is, that it stopped here is the finding
            problems.append(f"self-test: stopped after {list(times) or 'nothing'} with {type(error).__name__}: {error}")
    return Health(
        radweave=version("radweave"),
        place=str(Path(__file__).parents[1]),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=packages,
        devices=devices,
        default_device=default,
        cores=usable_cores(),
        memory_gb=_memory_gb(),
        java=shutil.which("java"),
        extras={extra: list(missing(extra)) for extra in EXTRAS},
        disk_gb=disk,
        self_test_s=times,
        problems=problems,
    )


def _packages() -> dict[str, str | None]:
    """Version of each requirement that is none of an extra."""
    found: dict[str, str | None] = {}
    for line in requires("radweave") or ():
        name = re.match(r"[\w.-]+", line)
        if name is None or "extra ==" in line:
            continue
        try:
            found[name[0]] = distribution(name[0]).version
        except PackageNotFoundError:
            found[name[0]] = None
    return found


def _devices(problems: list[str]) -> tuple[list[str], str]:
    """Devices in words, and which one models run on."""
    try:
        import torch

        from radweave.core.devices import default_device
    except ImportError as error:
        problems.append(f"torch cannot be imported: {error}")
        return ["cpu"], "cpu"
    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({facts.name}, {facts.total_memory / GB:.0f} GB)")
    if torch.backends.mps.is_available():
        devices.append("mps")
    try:
        return devices, str(default_device())
    except ValueError as error:
        problems.append(str(error))
        return devices, "cpu"


def _disk(problems: list[str]) -> dict[str, float]:
    """Free gigabytes here and where temporary files go."""
    free: dict[str, float] = {}
    for place in dict.fromkeys((Path.cwd(), Path(tempfile.gettempdir()))):
        free[str(place)] = round(shutil.disk_usage(place).free / GB, 1)
        if free[str(place)] < LEAST_FREE_GB:
            problems.append(f"{place}: {free[str(place)]} GB are free, a small run takes {LEAST_FREE_GB:.0f}")
    return free


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB, 1)
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return None


def lines(health: Health) -> list[str]:
    """What was found, for reading."""
    versions = ", ".join(f"{name} {found or 'MISSING'}" for name, found in sorted(health.packages.items()))
    memory = "" if health.memory_gb is None else f", {health.memory_gb} GB of memory"
    text = [
        f"radweave {health.radweave} in {health.place}",
        f"Python {health.python} on {health.system}, {health.cores} cores{memory}",
        f"packages: {versions}",
        f"devices: {', '.join(health.devices)}; models run on {health.default_device}",
        f"disk: {', '.join(f'{free} GB free in {place}' for place, free in health.disk_gb.items())}",
        f"Java: {health.java or 'none; METEOR is left out of scores'}",
    ]
    for extra, lacking in health.extras.items():
        text.append(f"extra {extra}: {f'not installed ({install_line(extra)})' if lacking else 'installed'}")
    if health.self_test_s is not None:
        steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in health.self_test_s.items())
        text.append(f"self-test: {steps or 'no step was finished'}")
    return text + [f"PROBLEM: {problem}" for problem in health.problems]


# The whole way in seconds: draw phantoms, train a model of a thousandth of a real one's size, draft, score.


STUDIES = 20
IMAGE_SIZE_PX = 64
TRAINING = (
    "data.image_size=32",
    "data.max_tokens=40",
    "data.tokenizer.vocab_size=300",
    "data.keep_features=false",
    "decoding.max_new_tokens=24",
    "model.vision_encoder.start=nothing",
    "model.vision_encoder.embedding_size=8",
    "model.vision_encoder.hidden_sizes=[8,16]",
    "model.vision_encoder.depths=[1,1]",
    "model.language_model.hidden_size=32",
    "model.language_model.num_layers=2",
    "stages.encoder.epochs=0",
    "stages.report.epochs=1",
    "stages.report.batch_size=8",
    "stages.report.select=loss",
)


def run_self_test(times: dict[str, float], say: Callable[[str], None]) -> None:
    """Do all of it in a temporary folder; ``times`` gets the seconds of each step that passed."""
    with tempfile.TemporaryDirectory(prefix="radweave-doctor-") as name:
        _run(Path(name), lambda step: _timed(step, times, say))


def _run(folder: Path, timed: Callable[[str], AbstractContextManager[None]]) -> None:
    with timed("load"):
        import radweave
        from radweave.engine.train import train
        from radweave.inference.predictor import Predictor  # noqa: F401  # what takes longest to import
        from radweave.metrics import Options
        from radweave.phantom.study import PhantomOptions, write_phantom_dataset
    with timed("draw"):
        options = PhantomOptions(image_size=IMAGE_SIZE_PX, prevalence="balanced")
        data = write_phantom_dataset(folder / "data", modality="xray", num_studies=STUDIES, seed=0, options=options)
    with timed("train"):
        run = train("baseline", data.path, folder / "run", overrides=TRAINING)
    with timed("draft"):
        study = next(study for study in data.studies("test") if study.report)
        # A model of this size and so few images: whether the image is familiar says nothing here.
        report = radweave.load(run).report([data.image_path(ref.path) for ref in study.images], force=True)
    with timed("score"):
        reference = {report.study_id: study.report or ""}
        scores = radweave.score({report.study_id: report.text or "-"}, reference, options=Options(meteor=False))
        assert scores.corpus["BLEU_1"].value is not None


@contextmanager
def _timed(step: str, times: dict[str, float], say: Callable[[str], None]) -> Iterator[None]:
    say(step)
    started = time.perf_counter()
    yield
    times[step] = round(time.perf_counter() - started, 2)
