"""Kernel smoothers over classical descriptors of training images, and no network: the strongest cheap baseline.

See docs/methods/kernels.md.
"""

from __future__ import annotations

from radweave.data.augmentation import NoAugmentation
from radweave.methods.descriptors import SIZE, ScanDescriptorsConfig
from radweave.methods.experiment import MANY_FINDINGS, TINY_CT, TINY_XRAY, DataConfig, as_written
from radweave.methods.kernels.model import KernelsExperiment, KernelsModelConfig
from radweave.methods.tables import Table, parts_table
from radweave.nn.decoding import DecodingConfig

MAX_VIEWS = 4
"""More than two, so that a second frontal image does not take the place of the lateral one."""
READ_AS_THEY_ARE = {"image_size": SIZE, "max_views": MAX_VIEWS, "augmentation": NoAugmentation(), "hidden_views": 0.0}


def tiny() -> KernelsExperiment:
    """A few minutes on one CPU core."""
    data: DataConfig = TINY_XRAY.model_copy(update=READ_AS_THEY_ARE)
    decoding = DecodingConfig(kind="expected_utility", max_new_tokens=96)
    return KernelsExperiment(data=data, model=KernelsModelConfig(), decoding=decoding)


def tiny_ct() -> KernelsExperiment:
    """``tiny`` for scans."""
    decoding = DecodingConfig(kind="expected_utility", max_new_tokens=160, expected_utility=MANY_FINDINGS)
    data: DataConfig = TINY_CT.model_copy(update={"augmentation": NoAugmentation()})
    return KernelsExperiment(
        data=data, model=KernelsModelConfig(descriptors=ScanDescriptorsConfig()), decoding=decoding
    )


def small() -> KernelsExperiment:
    """``tiny`` with more of the training studies, of sets that have more."""
    return tiny().model_copy(update={"model": KernelsModelConfig(max_studies=8192)})


def paper() -> KernelsExperiment:
    """``tiny`` with drafts scored as written; there is no paper."""
    experiment = tiny()
    return experiment.model_copy(update={"decoding": as_written(experiment.decoding)})


PRESETS = {"tiny": tiny, "tiny-ct": tiny_ct, "small": small, "paper": paper}

WITH_INDICATION = "told the indication"
ABLATIONS: dict[str, list[str]] = {
    "full": [],
    "w/o alignment": ["model.descriptors.aligned=false"],
    "w/o style": ["model.descriptors.style=0"],
    "w/o composites": ["decoding.expected_utility.composites=false"],
    "wording alone": ["decoding.expected_utility.findings=0"],
    "a threshold per class": ["decoding.expected_utility.thresholds=per_class"],
    "nearest report": ["decoding.kind=likelihood"],
    WITH_INDICATION: ["data.input_sections=[indication]"],
}

TABLES: dict[str, Table] = {
    "parts": parts_table("Kernels", (name for name in ABLATIONS if name != WITH_INDICATION)),
    "told": parts_table("Kernels", [WITH_INDICATION], adds="the indication adds"),
}
