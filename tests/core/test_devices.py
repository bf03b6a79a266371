"""The device that models run on."""

from __future__ import annotations

import pytest
import torch

from radweave.core.devices import VARIABLE, default_device, use_device
from radweave.core.errors import InputError
from radweave.core.provenance import arithmetic
from standin import crossings, standing_in


def test_the_device_that_was_asked_for_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    use_device("cpu")
    assert default_device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "gpu", "xpu", "cuda:", "meta", "cpu:1"])
def test_a_device_that_is_not_here_is_refused_with_those_that_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    with pytest.raises(InputError, match=r"--device.*no such device.*cpu"):
        use_device(name)
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(InputError, match="no such device"):
        default_device()


def test_a_device_that_another_package_brings_is_found_and_has_an_arithmetic_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen to share kept stages with the CPU before: ``--device cpu`` and ``cuda`` on one machine had one key."""
    monkeypatch.setenv(VARIABLE, "cpu")
    before = arithmetic()
    with standing_in() as device:
        use_device("standin")
        assert default_device().type == device.type
        assert arithmetic() != before
        with pytest.raises(InputError, match=r"standin, standin:0|standin"):
            use_device("standin:1")


def test_the_stand_in_refuses_what_cuda_refuses() -> None:
    """Else what passes on it would say nothing."""
    with standing_in() as device:
        there, here = torch.arange(4.0, device=device), torch.ones(4)
        for wrong in (
            lambda: there + here,
            lambda: here.add_(there),
            lambda: here[there.long()],
            lambda: there.index_put_((torch.tensor([1]),), torch.ones(1)),
            lambda: torch.stack([there.sum(), here.sum()]),
            lambda: torch.cat([there, here]),
            lambda: torch.rand(2, device=device, generator=torch.Generator()),
            lambda: there.index_select(0, torch.tensor([1])),
        ):
            with pytest.raises(RuntimeError, match=r"device"):
                wrong()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        crossings.clear()
        assert (there * torch.tensor(2.0))[torch.tensor([0, 3])].tolist() == [0.0, 6.0]
        assert there[[1, 2]].cpu().equal(torch.tensor([1.0, 2.0]))
        assert float(there.sum()) == 6
        assert crossings["aten::_local_scalar_dense"] == 1
