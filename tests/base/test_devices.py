"""The device that models run on."""

from __future__ import annotations

import pytest
import torch

from radweave.base.devices import VARIABLE, default_device, use_device
from radweave.base.errors import InputError


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
