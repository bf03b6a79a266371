"""JSON files are read with one error, which names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from radweave.core.errors import InputError
from radweave.core.json_files import read_json, read_jsonl


@pytest.mark.parametrize("line", ["{not json", "[1, 2]", '"text"', "{" * 3000, "\udcff"])
def test_a_broken_line_is_named_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(InputError, match=r"m\.jsonl, line 3"):
        list(read_jsonl(path))


def test_half_a_surrogate_pair_is_refused_and_a_whole_one_is_read(tmp_path: Path) -> None:
    """A JSON escape can hold what no file can: whoever writes the value again would end in a traceback."""
    path = tmp_path / "a.json"
    path.write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(path) == {"a": "\N{GRINNING FACE}"}
    for half in ("\\ud83d", "\\uDE00"):
        path.write_text(f'{{"a": "{half}"}}')
        with pytest.raises(InputError, match="not valid JSON"):
            read_json(path)
