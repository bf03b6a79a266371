"""Write phantom studies as a dataset folder."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from radweave.data.dataset import Dataset, DatasetCard, DatasetWriter
from radweave.errors import InputError
from radweave.phantom.study import PhantomOptions, PhantomStudy, draw_xray_study
from radweave.types import Modality

Progress = Callable[[int, int], None]


def write_phantom_dataset(
    out: Path,
    *,
    modality: Modality,
    num_studies: int,
    seed: int,
    options: PhantomOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Draw ``num_studies`` and write them to ``out``; 70 / 10 / 20 % of the patients to train, val and test.

    Raises:
        InputError: if ``out`` exists and ``overwrite`` is not set, or a number is out of range.
    """
    if num_studies < 1:
        raise InputError("a data set needs a study", field="studies", got=num_studies, expected="1 or more")
    if seed < 0:
        raise InputError("a seed is not negative", field="seed", got=seed)
    options = options or PhantomOptions()
    card = DatasetCard(
        name=f"phantom-{modality}",
        modality=modality,
        target=options.target,
        split_provenance="by patient, 7 : 1 : 2 in a fixed pattern",
        options={"seed": seed, **options.model_dump(mode="json")},
        notes=("Synthetic: no person is shown.",),
        licence="Apache-2.0",
    )
    with DatasetWriter(out, card, overwrite=overwrite) as writer:
        for index in range(num_studies):
            _add(writer, draw_xray_study(seed, index, options))
            if progress is not None:
                progress(index + 1, num_studies)
    return Dataset.open(out)


def _add(writer: DatasetWriter, study: PhantomStudy) -> None:
    refs = []
    for image in study.images:
        buffer = io.BytesIO()
        Image.fromarray(image.pixels).save(buffer, format="PNG")
        data = buffer.getvalue()
        path = writer.folder / image.ref.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        refs.append(image.ref.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()}))
    writer.add(study.record.model_copy(update={"images": tuple(refs)}))
