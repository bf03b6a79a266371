"""What the reading process can parse. Imported there only; nothing here imports torch."""

from __future__ import annotations

from typing import Final

from radweave.data.dicom_parse import parse_dicom
from radweave.data.raster_parse import parse_raster
from radweave.data.worker import Task

TASKS: Final[dict[str, Task]] = {"dicom": parse_dicom, "raster": parse_raster}
