"""Banks: two files that belong together, from the training split only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radweave.core.errors import InputError
from radweave.nn.memory.bank import Bank, load_bank, patient_code, save_bank


def bank(count: int = 3) -> Bank:
    rows = tuple({"study_id": f"s{i}", "patient": patient_code(f"p{i}"), "text": f"text {i}"} for i in range(count))
    return Bank({"vectors": torch.arange(count * 2.0).view(count, 2)}, rows)


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
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


def test_a_patient_is_a_code_in_it() -> None:
    assert patient_code("Jane") == patient_code("Jane") != patient_code("John")
    assert "Jane" not in patient_code("Jane")
