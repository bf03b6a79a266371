"""The lists of planted faults fit the tree, so that ``make mutants`` can try each of them; and the runner tells."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.plant import HERE, ROOT, Fault, Result, read_faults, table

LEAST = 150


@pytest.fixture(scope="module")
def faults() -> list[Fault]:
    return read_faults()


def test_enough_faults_have_distinct_names(faults: list[Fault]) -> None:
    assert len(faults) >= LEAST
    assert len({fault.name for fault in faults}) == len(faults)


def test_each_fault_stands_once_in_its_file_and_is_python(faults: list[Fault]) -> None:
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in {fault.path for fault in faults}}
    for fault in faults:
        assert "\n" not in fault.old + fault.new, fault.name
        assert fault.old != fault.new, fault.name
        compile(fault.changed(texts[fault.path]), fault.path, "exec")


def test_the_tests_that_should_notice_them_exist(faults: list[Fault]) -> None:
    for test in sorted({test for fault in faults for test in fault.tests}):
        path, _, name = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {re.escape(name.split('[')[0])}\(", text, re.MULTILINE), test


TRY = """
import dataclasses, json, sys
from pathlib import Path
from tests.planted import plant
faults = [plant.Fault("src/radweave/toy.py", what, "return 1", new, ("tests/test_toy.py",))
          for what, new in (("noticed", "return 2"), ("not noticed", "return True"), ("no end", "while True: pass"))]
keyed = [(fault, fault.what) for fault in faults]
results = list(plant.try_group(Path(sys.argv[1]), faults[0].tests, keyed[:2]))
plant.LEAST_LIMIT_S, plant.SLOWER = 0.5, 0.0
results += plant.try_group(Path(sys.argv[1]), faults[0].tests, keyed[2:])
print(json.dumps([dataclasses.asdict(result) for result in results]))
"""


def test_outcomes_are_reported_and_the_file_is_restored(tmp_path: Path) -> None:
    (tmp_path / "src" / "radweave").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    source = tmp_path / "src" / "radweave" / "toy.py"
    source.write_text("def one():\n    return 1\n")
    (tmp_path / "tests" / "test_toy.py").write_text(
        "import radweave.toy\n\ndef test_one():\n    assert radweave.toy.one() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(tmp_path)], cwd=HERE, capture_output=True, text=True, check=True
    )
    results = [Result(**row) for row in json.loads(done.stdout)]
    assert [result.outcome for result in results] == ["killed", "survived", "hung"]
    assert source.read_text() == "def one():\n    return 1\n"
    statement = table(results)
    assert "| radweave | 3 | 2 | 1 | 1 |" in statement
    assert "survived: toy.py: not noticed" in statement
