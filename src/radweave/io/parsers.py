"""Parsers of the reading process, each imported with the first file of its kind. None of them imports torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from radweave.io import worker
from radweave.io.worker import Task


def _parser(module: str, name: str) -> Task:
    """A parser of a module that is imported at its first use: pydicom and nibabel take longer than a small image."""

    def parse(request: dict[str, Any]) -> worker.Message:
        message: worker.Message = getattr(import_module(f"radweave.io.{module}"), name)(request)
        return message

    return parse


TASKS: Final[dict[str, Task]] = {
    "dicom": _parser("dicom_parse", "parse_dicom"),
    "raster": _parser("raster_parse", "parse_raster"),
    "nifti": _parser("volume_parse", "parse_nifti"),
    "nrrd": _parser("volume_parse", "parse_nrrd"),
    "metaimage": _parser("volume_parse", "parse_metaimage"),
}
