"""All modules of the package, for tests that look at every record."""

from __future__ import annotations

import importlib
import pkgutil
from importlib.util import find_spec

import radweave

NEEDS = {"radweave.nn.scan_kernels": "triton"}
"""Modules that import what is not everywhere, and what that is."""


def import_all() -> None:
    """Import every module that can be imported here."""
    for module in pkgutil.walk_packages(radweave.__path__, "radweave."):
        needed = NEEDS.get(module.name)
        if not module.name.endswith("__main__") and (needed is None or find_spec(needed) is not None):
            importlib.import_module(module.name)
