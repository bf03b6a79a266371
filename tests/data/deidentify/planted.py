"""DICOM files with identifiers planted in every place of a file that can bear one. Nothing here is real.

``make(folder, number)`` writes a file of the ``number``-th kind and gives what was planted in it, place by place.
``left(data)`` is a search of its own for all of that, in every encoding: it shares no code with what is tested.
"""

from __future__ import annotations

import codecs
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image
from pydicom import dcmread
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate, encapsulate_extended, generate_frames
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from image_files import chest, dataset

NAMES: Final = ("Zquillby^Jonx", "Li^Xu", "Wzrobel^Ana", "山田^太郎", "Grünwaldt^Zoë", "김^희중")
RECORD, ACCESSION, STUDY = "12-3456-78", "ACC7788990", "ST-90417"
BORN, SEEN = ("1960", "04", "12"), ("2019", "11", "23")
DOCTOR, HOSPITAL, PHONE = "Vrbnikova^Hela", "Santa Quixola Infirmary", "0176-5559-8432"
SYNTAXES: Final = (
    ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian, RLELossless,
    JPEGBaseline8Bit, JPEGLosslessSV1, JPEGLSLossless, JPEG2000Lossless,
)  # fmt: skip
