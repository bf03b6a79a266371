"""Banks: two files that belong together, from the training split only, written and read in pieces."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from radweave.core.errors import InputError
from radweave.nn.memory import bank as tensor_file
from radweave.nn.memory.bank import Bank, load_bank, patient_code, save_bank, write_tensors


def bank(count: int = 3) -> Bank:
    rows = tuple({"study_id": f"s{i}", "patient": patient_code(f"p{i}"), "text": f"text {i}"} for i in range(count))
    return Bank({"vectors": torch.arange(count * 2.0).view(count, 2)}, rows)


def test_a_bank_is_read_as_written(tmp_path: Path) -> None:
    save_bank(bank(), tmp_path / "bank")
    back = load_bank(tmp_path / "bank")
    assert back.rows == bank().rows
    assert torch.equal(back.tensors["vectors"], bank().tensors["vectors"])


def test_a_row_without_an_origin_and_hashes_of_other_rows_are_refused(tmp_path: Path) -> None:
    save_bank(bank().renamed("salt", {}, {}), tmp_path / "bank")
    (tmp_path / "bank" / "owners.json").write_text('{"salt": "salt", "studies": ["a"], "patients": ["b"]}')
    with pytest.raises(InputError, match=r"owners\.json.*studies.*expected 3"):
        load_bank(tmp_path / "bank")
    (tmp_path / "bank" / "rows.jsonl").write_text('{"study_id": "s0", "patient": 3}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl, line 1, field 'patient'"):
        load_bank(tmp_path / "bank")


def test_two_writings_are_equal_byte_for_byte(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_bank(bank(), tmp_path / name)
    for file in ("bank.safetensors", "rows.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_row_of_another_split_is_refused() -> None:
    with pytest.raises(InputError, match=r"leak: 1 rows of the bank 'reports'.*s2"):
        bank().refuse_others("reports", ["s0", "s1"])
    bank().refuse_others("reports", ["s0", "s1", "s2"])


@pytest.mark.parametrize("fault", ["missing", "broken", "short"])
def test_a_damaged_bank_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    save_bank(bank(), tmp_path / "bank")
    weights, rows = tmp_path / "bank" / "bank.safetensors", tmp_path / "bank" / "rows.jsonl"
    if fault == "missing":
        weights.unlink()
    elif fault == "broken":
        weights.write_bytes(weights.read_bytes()[:20])
    else:
        rows.write_text(rows.read_text().split("\n", 1)[0] + "\n")
    with pytest.raises(InputError, match="bank"):
        load_bank(tmp_path / "bank")


def test_a_bank_holds_codes_of_patients() -> None:
    assert patient_code("Jane") == patient_code("Jane") != patient_code("John")
    assert "Jane" not in patient_code("Jane")


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
