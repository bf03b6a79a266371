"""What decides the numbers of a run beside its configuration and data: source code, libraries, processors.

Kept stages and features ask for all three, so that nothing is used again that would come out otherwise today; tables
print the hash of the code. The code is the whole package less a short list, so that a new file counts until someone
says why it need not.
"""

from __future__ import annotations

import platform
import re
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

PACKAGE: Final = "radweave"
DENIED: Final = {
    "radweave.cli": "parses options and prints; what training gets from it stands in the experiment",
    "radweave.experiments": "runs trainings by the same function as everyone, compares and tabulates them",
    "radweave.templates": "the text of pages",
    "radweave.inference": "reports, features and floors of a finished run",
    "radweave.workstation": "drafts with a finished run, and keeps what readers make of it",
    "radweave.engine.estimate": "counts parameters without weights",
    "radweave.phantom": "makes images and reports; training sees them as a data set, which is hashed",
    "radweave.data.importers": "write a data set, which is hashed",
}
"""Room -> why nothing in it can touch a trained weight. A test holds that training imports none of them."""

PRINTING: Final = frozenset({"typer", "rich", "jinja2"})
"""Requirements that format text and nothing else."""
OPTIONAL: Final = ("bitsandbytes", "faiss-cpu")
"""Libraries of extras that compute in training where they are installed."""


@cache
def code_hash(*rooms: str) -> str:
    """SHA-256 over the files of the package that can decide what training gives, or over those of some rooms only.

    A room is a module or package by its dotted name, with everything below it.
    """
    root = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if not path.is_file() or "__pycache__" in place.parts or path.name.startswith("."):
            continue
        name = ".".join((PACKAGE, *place.parent.parts, place.stem))
        if _is_in(name, DENIED) or (rooms and not _is_in(name, rooms)):
            continue
        data = path.read_bytes()
        digest.update(f"{place.as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def _is_in(name: str, rooms: tuple[str, ...] | dict[str, str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:depth]) in rooms for depth in range(1, len(parts) + 1))


@cache
def library_versions() -> dict[str, str]:
    """Versions of what decides the numbers: Python, this package, and what it requires to compute."""
    wanted = [re.match(r"[\w.-]+", line) for line in requires(PACKAGE) or () if "extra ==" not in line]
    names = [found[0].lower() for found in wanted if found is not None]
    versions = {"python": platform.python_version(), PACKAGE: version(PACKAGE)}
    for name in (*names, *OPTIONAL):
        if name not in PRINTING:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:  # not installed: it computes nothing
                continue
    return versions


def arithmetic() -> dict[str, str | int | bool]:
    """How this process adds and multiplies: the order and precision of sums hang on it.

    The number of threads is part of it, since each thread sums its own share.
    """
    import torch

    from radweave.core.devices import default_device

    device = default_device()
    facts: dict[str, str | int | bool] = {
        "on": device.type,
        "machine": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "onednn": bool(torch.backends.mkldnn.enabled),
        "threads": torch.get_num_threads(),
        "products": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if device.type == "cuda":
        facts |= {
            "device": torch.cuda.get_device_name(device),
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "cudnn_tf32": bool(torch.backends.cudnn.allow_tf32),
        }
    return facts
