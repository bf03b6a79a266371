"""Importers: from a downloaded data set to a dataset folder.

    import_dataset("iu-xray", Path("iu_xray"), Path("dataset"), options=ImportOptions(target="findings"))

One module per data set opens its source and yields its studies; ``build`` makes target texts, splits and priors the
same way for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from radweave.core.config import first_problem
from radweave.core.errors import InputError
from radweave.core.storage import refuse_existing
from radweave.data.dataset import DATASET, Dataset
from radweave.data.importers.build import Progress, build_dataset
from radweave.data.importers.source import ImportOptions, Source

__all__ = ["KINDS", "ImportOptions", "import_dataset", "options_from"]

OpenSource = Callable[[Path, ImportOptions], Source]

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "iu-xray": "iu_xray",
        "mimic-cxr": "mimic_cxr",
        "chexpert-plus": "chexpert_plus",
        "rexrank": "rexrank",
        "rexgradient": "rexgradient",
        "padchest-gr": "padchest_gr",
        "ms-cxr": "ms_cxr",
        "chest-imagenome": "chest_imagenome",
        "vindr-cxr": "vindr_cxr",
        "ct-rate": "ct_rate",
        "radgenome-chestct": "ct_rate",
        "ctrg-chest": "ctrg",
        "folder": "folder",
    }
)
"""Kind, as the command line names it -> module of this package with ``open_source(path, options)``."""


def options_from(**values: Any) -> ImportOptions:
    """Options from plain values.

    Raises:
        InputError: for a value that does not fit, with those that would.
    """
    try:
        return ImportOptions(**values)
    except ValidationError as error:
        raise InputError(f"option {first_problem(error)}") from None


def import_dataset(
    kind: str,
    source: Path,
    out: Path,
    *,
    options: ImportOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    open_source: OpenSource | None = None,
) -> Dataset:
    """Build a dataset folder from a downloaded data set. The same source and options give the same bytes.

    Args:
        progress: called with the number of processed studies and of all.
        open_source: opens a source of a kind that is not in ``KINDS``.

    Raises:
        InputError: for an unknown kind, a source that is missing or not of that kind, an output that exists.
    """
    if open_source is None and kind not in KINDS:
        raise InputError("no such kind of data set", field="kind", got=kind, expected=", ".join(KINDS))
    refuse_existing(out, overwrite=overwrite)
    if not source.exists():
        raise InputError("no such file or folder", file=source)
    options = options or ImportOptions()
    _refuse_losing_data(out, [source, options.images, options.annotation], overwrite=overwrite)
    if open_source is None:
        open_source = import_module(f"{__name__}.{KINDS[kind]}").open_source
    return build_dataset(open_source(source, options), out, options, overwrite=overwrite, progress=progress)


def _refuse_losing_data(out: Path, inputs: list[Path | None], *, overwrite: bool) -> None:
    """Raise InputError if writing ``out`` would replace an input, or a folder that is no data set."""
    target = out.resolve()
    for path in inputs:
        if path is not None and path.resolve().is_relative_to(target):
            raise InputError("the output would replace what is imported; give another folder", file=out)
    if overwrite and out.is_file():
        raise InputError("is no dataset folder; it is not replaced", file=out)
    DATASET.refuse_other(out)
