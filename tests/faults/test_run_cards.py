"""Run folders that were damaged, mixed up or made up: one test per fault."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from radweave.cli import main
from radweave.core.config import parse_yaml, read_yaml
from radweave.core.errors import InputError
from radweave.core.storage import sha256_file, sha256_json
from radweave.engine.restore import restore
from radweave.engine.run_folder import MOST_BYTES, hash_files, keep_licences, read_card, read_card_alone
from radweave.inference.export import export
from radweave.methods import resolve
from radweave.nn.memory.bank import Bank, save_bank
from tests.toys import rewrite_card


@pytest.fixture
def light_run(run: Path) -> Path:
    """A run with tiny files, for tests that read the card often."""
    for name in read_card(run).files:
        (run / name).write_bytes(b"x")
    rewrite_card(run, files=hash_files(run))
    return run


def test_no_flipped_bit_of_a_card_is_accepted(light_run: Path) -> None:
    path = light_run / "run.json"
    data = path.read_bytes()
    draws = random.Random(0)
    accepted = []
    for _ in range(400):
        place, bit = draws.randrange(len(data)), draws.randrange(8)
        broken = bytearray(data)
        broken[place] ^= 1 << bit
        path.write_bytes(broken)
        try:
            read_card(light_run)
            accepted.append((place, bit))
        except InputError:
            pass
    assert accepted == []
    path.write_bytes(data)
    assert read_card(light_run).method == "baseline"


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "3",
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"format": "radweave-run", "version": 2, "seed": ' + "9" * 5000 + "}",
        '{"format": "radweave-run", "version": 2, "method": "\\ud800"}',
        "\x00",
        '{"format": "radweave-run", "version": NaN}',
    ],
)
@pytest.mark.parametrize("name", ["run.json", "dataset.json"])
def test_json_that_python_chokes_on_is_a_clear_error(
    text: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    verb = ["generate", str(tmp_path), "x.png"] if name == "run.json" else ["data", "check", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["radweave", *verb])
    with pytest.raises(SystemExit, match="2"):
        main()
    stderr = capsys.readouterr().err
    assert stderr.startswith(f"error: {tmp_path / name}")
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    ["2001-99-99", "!!int xyz", "!!int ''", "!!float x", "!!timestamp x", "!!bool x", "9" * 5000, "[" * 5000, "!!x y"],
)
def test_yaml_that_python_chokes_on_is_a_clear_error(run: Path, text: str) -> None:
    (run / "config.yaml").write_text(f"seed: {text}\n")
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match=r"config\.yaml: not valid YAML") as caught:
        restore(run)
    assert "\n" not in str(caught.value)


def test_yaml_keeps_its_values() -> None:
    assert parse_yaml("[1, 2.5, true, null, text, 0x10]") == [1, 2.5, True, None, "text", 16]


def test_a_card_of_an_earlier_version_says_to_train_again(run: Path) -> None:
    card = json.loads((run / "run.json").read_text())
    del card["digest"]
    (run / "run.json").write_text(json.dumps({**card, "version": 1}))
    with pytest.raises(InputError, match=r"another version of Radweave.*train it again.*got 1"):
        restore(run)


@pytest.mark.parametrize("steps", [{}, {"report": -1}, {"report": 18}, {"report": 1, "language": 0, "vision": 0}])
def test_a_card_needs_the_stages_of_its_run(run: Path, toy_run: Path, steps: dict[str, int]) -> None:
    text = (toy_run / "run.json").read_text()
    values = {**json.loads(text), "trained_steps": steps}
    del values["digest"]
    (run / "run.json").write_text(
        json.dumps({**values, "digest": sha256_json(values)}, indent=2, ensure_ascii=False) + "\n"
    )
    with pytest.raises(InputError, match=r"run\.json.*trained_steps"):
        restore(run)


def test_a_card_that_names_no_files_is_refused(run: Path) -> None:
    for files in ({}, {"config.yaml": "0" * 64}):
        values = {**json.loads((run / "run.json").read_text()), "files": files}
        del values["digest"]
        (run / "run.json").write_text(json.dumps({**values, "digest": sha256_json(values)}))
        with pytest.raises(InputError, match=r"run\.json.*files.*is not among them"):
            read_card(run)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.sh",
        "tokenizer/../../evil.sh",
        "tokenizer/../config.yaml",
        "/etc/hostname",
        "./config.yaml",
        "tokenizer//a",
        "tokenizer/",
        "",
        ".",
        "..",
        "a\\b",
        "a\nb",
        "a\x1bb",
        "run.json",
    ],
)
def test_a_card_names_files_inside_its_folder_only(light_run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "evil.sh").write_text("x")
    values = json.loads((light_run / "run.json").read_text())
    values["files"][name] = sha256_file(tmp_path / "evil.sh")
    (light_run / "run.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"run\.json.*not the name of a file inside|run\.json.*does not name itself"):
        read_card_alone(light_run)


def test_a_file_that_was_added_is_named(run: Path) -> None:
    for name in (
        "tokenizer/extra.py",
        "parts/x/model.safetensors",
        "memories/bank/rows.jsonl",
        "licences/a/.hidden",
        "familiarity/x",
    ):
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("added")
        with pytest.raises(InputError, match=f"{path.name}: file was added"):
            restore(run)
        path.unlink()
    shutil.rmtree(run / "memories")
    (run / "tokenizer" / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="link: file was added"):
        restore(run)
    (run / "tokenizer" / "link").unlink()
    (run / "notes.txt").write_text("what the user keeps beside is no part of the model")
    assert restore(run).card.is_trained


def test_links_and_devices_are_no_files_of_a_run(run: Path, toy_run: Path) -> None:
    (run / "weights.safetensors").unlink()
    (run / "weights.safetensors").symlink_to(toy_run / "weights.safetensors")
    with pytest.raises(InputError, match=r"weights\.safetensors: file of the run is a symbolic link"):
        restore(run)
    (run / "weights.safetensors").unlink()
    os.mkfifo(run / "weights.safetensors")
    with pytest.raises(InputError, match=r"weights\.safetensors: file of the run is no regular file"):
        restore(run)
    (run / "weights.safetensors").unlink()
    shutil.copyfile(toy_run / "weights.safetensors", run / "weights.safetensors")
    (run / "tokenizer").rename(run / "elsewhere")
    (run / "tokenizer").symlink_to("elsewhere")
    with pytest.raises(InputError, match=r"tokenizer.*symbolic link|tokenizer: file was added"):
        restore(run)


def test_a_run_folder_may_itself_be_reached_through_a_link(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(toy_run)
    assert read_card(tmp_path / "link").is_trained


def test_the_order_of_classes_is_in_the_weights_too(run: Path) -> None:
    classes = list(read_card(run).classes)
    rewrite_card(run, classes=classes[::-1])
    with pytest.raises(InputError, match=r"weights\.safetensors.*other classes"):
        restore(run)
    rewrite_card(run, classes=classes)
    path = run / "weights.safetensors"
    save_file(load_file(str(path)), str(path))
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match=r"weights\.safetensors.*other classes"):
        restore(run)


def test_an_export_of_a_hostile_card_writes_nothing(light_run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "evil.sh").write_text("mine")
    (tmp_path / "evil.sh").write_text("theirs")
    values = json.loads((light_run / "run.json").read_text())
    del values["digest"]
    values["files"]["tokenizer/../../evil.sh"] = sha256_file(tmp_path / "evil.sh")
    text = json.dumps({**values, "digest": sha256_json(values)}, indent=2, ensure_ascii=False) + "\n"
    (light_run / "run.json").write_text(text)
    with pytest.raises(InputError, match=r"run\.json"):
        export(light_run, tmp_path / "there" / "out")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["evil.sh"]
    assert (tmp_path / "there" / "evil.sh").read_text() == "mine"


def test_an_export_takes_licences_from_the_run_and_reads_no_folder_that_a_configuration_names(
    run: Path, tmp_path: Path
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "NOTICE-salaries.txt").write_text("secret")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["tokenizer"] = {"kind": "pretrained", "path": str(tmp_path / "private")}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "licences" / "data.tokenizer").mkdir(parents=True)
    (run / "licences" / "data.tokenizer" / "LICENSE").write_text("free")
    rewrite_card(run, files=hash_files(run))
    out = export(run, tmp_path / "out")
    assert (out / "licences" / "data.tokenizer" / "LICENSE").read_text() == "free"
    assert "`licences/data.tokenizer/LICENSE`" in (out / "LICENSES.md").read_text()
    assert not [path for path in out.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]


def test_licences_of_a_checkpoint_are_small_files_of_its_own(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "snapshots" / "1"
    blobs = tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text("free")
    (tmp_path / "private").write_text("secret")
    (snapshot / "LICENSE").symlink_to("../../blobs/abc")
    (snapshot / "NOTICE").symlink_to(tmp_path / "private")
    (snapshot / "LICENSE-weights.bin").write_bytes(bytes(MOST_BYTES + 1))
    (snapshot / "LICENSE\n*.md").write_text("odd")
    experiment = resolve("baseline", "tiny", [f"data.tokenizer={{kind: pretrained, path: '{snapshot}'}}"])
    keep_licences(experiment, tmp_path / "licences")
    licences = {path.name: path.read_text() for path in (tmp_path / "licences" / "data.tokenizer").iterdir()}
    assert licences == {"LICENSE": "free", "LICENSE__.md": "odd"}


def test_run_card_values_are_escaped_on_export_pages(run: Path, tmp_path: Path) -> None:
    evil = "</td><script>x</script> | a\n\n# Tested on all patients\n[x](http://evil)"
    card = read_card(run).model_dump(mode="json")
    versions = {**card["versions"], "radweave": evil}
    facts = {**card["dataset"], "name": f"`{evil}", "target": evil, "cleaning": evil}
    rewrite_card(run, dataset=facts, versions=versions, preset=evil)
    out = export(run, tmp_path / "out")
    for name in ("README.md", "LICENSES.md"):
        page = (out / name).read_text()
        assert "\n# Tested" not in page
        assert re.search(r"(?<!\\)<script|\]\(|(?<!:\\)//evil", page) is None
        assert "medical device." not in page.replace("not a medical device.", "")
    assert "not a medical device" in (out / "README.md").read_text()


def test_an_export_is_no_part_of_its_run(run: Path) -> None:
    for out in (run, run / "out", run / "tokenizer", run.parent):
        with pytest.raises(InputError, match="cannot lie in its run folder, or around it"):
            export(run, out, overwrite=True)
    assert restore(run).card.is_trained


def test_memories_that_the_method_cannot_have_are_refused(run: Path) -> None:
    save_bank(Bank({"vectors": torch.eye(2)}, ({"study_id": "a", "patient": "b"},) * 2), run / "memories" / "bank")
    rewrite_card(run, files=hash_files(run))
    with pytest.raises(InputError, match="memories: this method has no memories"):
        restore(run)


@pytest.mark.parametrize("name", ["run.json", "config.yaml"])
def test_a_giant_file_is_refused_before_it_is_read(light_run: Path, name: str) -> None:
    os.truncate(light_run / name, 40 << 30)  # of holes: it takes no space here
    with pytest.raises(InputError, match="too large") as refused:
        read_card_alone(light_run) if name == "run.json" else read_yaml(light_run / name)
    assert str(refused.value.file) == str(light_run / name)
