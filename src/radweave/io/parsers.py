"""What the reading process can parse. Imported there only; nothing here imports torch."""

from __future__ import annotations

from typing import Final

from radweave.io import worker
from radweave.io.dicom_parse import parse_dicom
from radweave.io.raster_parse import parse_raster
from radweave.io.worker import Task


def parse_nifti(request: dict[str, object]) -> worker.Message:
    """As ``volume_parse.parse_nifti``; nibabel is loaded when the first volume comes."""
    from radweave.io.volume_parse import parse_nifti as parse

    return parse(request)


def parse_nrrd(request: dict[str, object]) -> worker.Message:
    """As ``volume_parse.parse_nrrd``."""
    from radweave.io.volume_parse import parse_nrrd as parse

    return parse(request)


def parse_metaimage(request: dict[str, object]) -> worker.Message:
    """As ``metaimage_parse.parse_metaimage``."""
    from radweave.io.volume_parse import parse_metaimage as parse

    return parse(request)


TASKS: Final[dict[str, Task]] = {
    "dicom": parse_dicom,
    "raster": parse_raster,
    "nifti": parse_nifti,
    "nrrd": parse_nrrd,
    "metaimage": parse_metaimage,
}
