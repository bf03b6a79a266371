"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import radweave
from radweave.data.dataset import Dataset
from tests.toys import ROOT, TOY_CT_OVERRIDES, TOY_OVERRIDES, TOY_SIZES, write_toy_dataset

# Triton's kernels run in its interpreter where there is no GPU; that has to be said before it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Processes that tests start import the package that is tested here, not one that happens to be installed.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(radweave.__file__).parents[1]), str(ROOT)])


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Shapes as they come: for what a function itself says of wrong ones."""
    from jaxtyping import config

    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with the real test data: ``RADWEAVE_TEST_DATA``, or ``shared/data`` beside the checkout; else skip."""
    configured = os.environ.get("RADWEAVE_TEST_DATA")
    folder = Path(configured) if configured else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real test data is not here (set RADWEAVE_TEST_DATA to its folder)")
    return folder


@pytest.fixture(scope="session")
def toy_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of 22 made-up studies. Do not change it; copy it first."""
    folder = tmp_path_factory.mktemp("toy")
    return write_toy_dataset(folder / "dataset", folder / "sources")


@pytest.fixture(scope="session")
def toy_ct_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset of 24 phantom scans of 8 x 16 x 16 voxels. Do not change it; copy it first."""
    from radweave.phantom.study import PhantomOptions, write_phantom_dataset

    options = PhantomOptions(prevalence="balanced", volume_size=16, slices=8)
    out = tmp_path_factory.mktemp("toy_ct") / "dataset"
    return write_phantom_dataset(out, modality="ct", num_studies=24, seed=0, options=options)


@pytest.fixture(scope="session", autouse=True)
def _toys_are_not_judged() -> Iterator[None]:
    """Toy images are patches, and tests give toy runs other pictures: these runs judge no picture."""
    from radweave.data.ood import detector

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detector, "MIN_IMAGES", 150)
        yield


@pytest.fixture(scope="session")
def toy_run(toy_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline run trained for a few epochs on the toy dataset. Do not change it; copy it first."""
    from radweave.engine.train import train

    out = tmp_path_factory.mktemp("runs") / "run"
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=6"]
    return train("baseline", toy_dataset.path, out, overrides=overrides)


@pytest.fixture(scope="session")
def toy_ct_run(toy_ct_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline run trained for one epoch on the toy scans. Do not change it; copy it first."""
    from radweave.engine.train import train

    out = tmp_path_factory.mktemp("ct_runs") / "run"
    return train("baseline", toy_ct_dataset.path, out, preset="tiny-ct", overrides=TOY_CT_OVERRIDES)
