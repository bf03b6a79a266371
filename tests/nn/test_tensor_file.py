"""Banks larger than memory: the bytes are the library's, and neither writing nor drawing rows holds all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from radweave.nn.memory import bank as tensor_file
from radweave.nn.memory.bank import Bank, load_bank, save_bank, write_tensors


def test_the_bytes_are_those_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    tensors = {
        "b": torch.randn(7, 3),
        "a": torch.randn(7, 2, 5),
        "mask": torch.rand(7) > 0.5,
        "ids": torch.arange(7),
        "half": torch.randn(7, 4).bfloat16(),
        "turned": torch.randn(3, 7).T,
        "none": torch.zeros(7, 0),
    }
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(tmp_path / "theirs"))
    for piece in (1, 30, 1 << 24):
        monkeypatch.setattr(tensor_file, "PIECE_BYTES", piece)
        write_tensors(tmp_path / "ours", tensors)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def own_memory() -> int:
    """Bytes that this process holds itself; pages of mapped files, which may go at any time, are not among them."""
    return int(re.search(r"^RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1]) * 1024  # type: ignore[index]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the system does not tell")
def test_a_bank_is_written_and_drawn_from_without_being_in_memory(tmp_path: Path) -> None:
    number, width = 32, 1 << 20
    bank = Bank(
        {"values": torch.ones(1, width).expand(number, width)},
        tuple({"study_id": f"s{row}", "patient": f"p{row}"} for row in range(number)),
    )
    before = own_memory()
    save_bank(bank, tmp_path / "bank")
    loaded = load_bank(tmp_path / "bank")
    assert (tmp_path / "bank" / "bank.safetensors").stat().st_size > 128 << 20
    assert float(loaded.tensors["values"][torch.tensor([3, 20])].sum()) == 2 * width
    # Half of what is in the file: a few pieces of 4 MiB on their way to it, and the rows that were drawn.
    assert own_memory() - before < 64 << 20
