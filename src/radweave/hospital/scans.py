"""Which images of a CT study are its scan: an archive has the scan in several series, and scouts beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from radweave.base.errors import InputError
from radweave.data.reading.dicom import read_dicom

CT: Final = "CT"
_SCOUT: Final = "LOCALIZER"
"""Image Type, value 3 (PS3.3 C.8.2.1.1.1)."""


def scan_of(files: Sequence[Path]) -> list[Path]:
    """The slices of the CT series that has most of them, in the order given; all files where none is such a slice.

    Of series with equally many it is always the same one.
    """
    series: defaultdict[str, list[Path]] = defaultdict(list)
    for file in files:
        try:
            header = read_dicom(file, pixels=False).header
        except InputError:
            continue
        if header.modality == CT and _SCOUT not in header.image_types and header.series_key is not None:
            series[header.series_key].append(file)
    if not series:
        return list(files)
    return max(series.items(), key=lambda pair: (len(pair[1]), pair[0]))[1]
