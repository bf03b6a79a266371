"""Hashes cover all there is, and nothing else."""

from __future__ import annotations

import hashlib
from pathlib import Path

from radweave.core.storage import sha256_file, sha256_folder, sha256_json


def test_hash_of_json_does_not_depend_on_key_order() -> None:
    assert sha256_json({"a": 1, "b": [2]}) == sha256_json({"b": [2], "a": 1})
    assert sha256_json({"a": 1}) != sha256_json({"a": 2})


def test_hashes_cover_every_byte_of_a_file_and_of_a_folder(tmp_path: Path) -> None:
    data = bytes(3 << 20)
    for place in (0, 1 << 20, (3 << 20) - 1):
        (tmp_path / "large").write_bytes(data[:place] + b"1" + data[place + 1 :])
        assert sha256_file(tmp_path / "large") == hashlib.sha256((tmp_path / "large").read_bytes()).hexdigest()
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_text("1")
    seen = {sha256_folder(folder)}
    (folder / "inner" / "a").write_text("2")
    seen.add(sha256_folder(folder))
    (folder / "inner" / "a").rename(folder / "a")
    seen.add(sha256_folder(folder))
    assert len(seen) == 3
    assert sha256_folder(folder) == sha256_folder(folder)
    assert sha256_folder(tmp_path / "missing") == sha256_json({})
