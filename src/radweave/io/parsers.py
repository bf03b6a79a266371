"""Parsers of the reading process, imported there only. None of them imports torch."""

from __future__ import annotations

from typing import Any, Final

from radweave.io import worker
from radweave.io.dicom_parse import parse_dicom
from radweave.io.raster_parse import parse_raster
from radweave.io.worker import Task


def _volume_parser(name: str) -> Task:
    """A parser of ``volume_parse``, which loads nibabel at its first use."""

    def parse(request: dict[str, Any]) -> worker.Message:
        from radweave.io import volume_parse

        message: worker.Message = getattr(volume_parse, name)(request)
        return message

    return parse


TASKS: Final[dict[str, Task]] = {
    "dicom": parse_dicom,
    "raster": parse_raster,
    "nifti": _volume_parser("parse_nifti"),
    "nrrd": _volume_parser("parse_nrrd"),
    "metaimage": _volume_parser("parse_metaimage"),
}
