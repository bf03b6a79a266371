"""Provenance of a run's numbers besides configuration and data: source code, libraries, processors.

All three are part of the keys of cached stages and features; tables print the hash of the code. The hash covers the
package except for a short list, so that new files count by default.
"""

from __future__ import annotations

import platform
import re
import subprocess
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

PACKAGE: Final = "radweave"
DENIED: Final = {
    "radweave.cli": "parses options and prints; its effect on training is part of the experiment",
    "radweave.experiments": "runs trainings by the same function as everyone, compares and tabulates them",
    "radweave.templates": "the text of pages",
    "radweave.inference": "reports, features and floors of a finished run",
    "radweave.workstation": "drafts with a finished run, and keeps what readers make of it",
    "radweave.phantom": "makes images and reports; training sees them as a data set, which is hashed",
    "radweave.data.importers": "write a data set, which is hashed",
}
"""Package -> reason why it cannot change a trained weight. A test checks that training imports none of them."""

PRINTING: Final = frozenset({"typer", "rich", "jinja2"})
"""Requirements that only format text."""
OPTIONAL: Final = ("bitsandbytes", "faiss-cpu")
"""Libraries of extras that compute in training if installed."""


@cache
def code_hash(*packages: str) -> str:
    """SHA-256 over all files that can change a training, or only over those of some packages (by dotted name)."""
    root = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(root.rglob("*")):
        inside = path.relative_to(root)
        if not path.is_file() or "__pycache__" in inside.parts or path.name.startswith("."):
            continue
        name = ".".join((PACKAGE, *inside.parent.parts, inside.stem))
        if _is_in(name, DENIED) or (packages and not _is_in(name, packages)):
            continue
        data = path.read_bytes()
        digest.update(f"{inside.as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


@cache
def commit() -> str | None:
    """Commit of the source code, with a "+" if its files differ from that; None where it is not in a git checkout."""
    root = Path(__file__).parents[1]
    git = ("git", "-C", str(root))
    try:
        # A package may be installed below somebody else's checkout.
        if not _output(*git, "ls-files", "__init__.py"):
            return None
        changed = _output(*git, "status", "--porcelain", "--", ".")
        return _output(*git, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def _is_in(name: str, packages: tuple[str, ...] | dict[str, str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:depth]) in packages for depth in range(1, len(parts) + 1))


@cache
def library_versions() -> dict[str, str]:
    """Versions of Python, this package, and the libraries that compute."""
    matches = [re.match(r"[\w.-]+", line) for line in requires(PACKAGE) or () if "extra ==" not in line]
    names = [match[0].lower() for match in matches if match is not None]
    versions = {"python": platform.python_version(), PACKAGE: version(PACKAGE)}
    for name in (*names, *OPTIONAL):
        if name not in PRINTING:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:  # not installed: it computes nothing
                continue
    return versions


def arithmetic() -> dict[str, str | int | bool]:
    """Settings on which order and precision of sums depend, such as the number of threads, which share a sum."""
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
