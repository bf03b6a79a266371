"""The reading process, and chat templates rendered in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from radweave.core.errors import InputError
from radweave.data.tokenizer import BpeTokenizerConfig
from radweave.io import worker
from radweave.io.dicom import read_dicom
from radweave.io.sandbox import Sandbox
from radweave.nn.prompt import render_turn
from tests.image_files import write_dicom

HOSTILE = '''
"""Decoders that misbehave in every way a native library can."""
import ctypes, os, signal, sys, time
import numpy as np
from radweave.core.errors import InputError

def crash(request): os.kill(os.getpid(), signal.SIGSEGV)
def abort(request): os.abort()
def leave(request): os._exit(0)
def hang(request): time.sleep(60)
def spin(request):
    while True: pass
def grow(request): return {"size": len(bytearray(3 << 30))}, {}
class Panic(BaseException): pass
def panic(request): raise Panic("Smith^John")
def talk(request): print("Smith^John"); print("Smith^John", file=sys.stderr); return {"ok": 1}, {}
def babble(request): os.write(request["fd"], b"x" * 100); return {}, {}
def write(request): open(request["target"], "wb", buffering=0).write(b"x"); return {}, {}
def unsendable(request): return {}, {"a": np.array([1 + 2j])}
def refuse(request): raise InputError("no good", field="Rows", got=3, expected=4)
def echo(request): return {"pid": os.getpid(), "n": request.get("n")}, {"a": np.arange(request.get("n", 1), dtype="i4")}
TASKS = {name: value for name, value in list(globals().items()) if callable(value) and name.islower()}
'''


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    (tmp_path / "hostile_parsers.py").write_text(HOSTILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    box = Sandbox("hostile_parsers", size=2, address_space_bytes=2 << 30)
    yield box
    box.close()


@pytest.mark.parametrize("task", ["crash", "abort", "leave"])
def test_a_crash_refuses_only_its_file(pool: Sandbox, task: str) -> None:
    with pytest.raises(InputError, match=r"a\.dcm: it made the decoder crash"):
        pool.call(task, {"path": "a.dcm"})
    assert pool.call("echo", {"n": 5})[0]["n"] == 5
    assert pool.started == 2


@pytest.mark.parametrize("task", ["hang", "spin"])
def test_a_hang_ends_at_the_time_limit(pool: Sandbox, task: str) -> None:
    with pytest.raises(InputError, match=r"longer than 0\.3 s"):
        pool.call(task, {"path": "a.dcm"}, timeout_s=0.3)
    assert pool.call("echo", {"n": 2})[0]["n"] == 2


def test_memory_is_limited_and_the_worker_survives(pool: Sandbox) -> None:
    with pytest.raises(InputError, match="more memory"):
        pool.call("grow", {"path": "a.dcm"})
    assert pool.call("echo", {"n": 2})[0]["n"] == 2
    assert pool.started == 1


def test_base_exceptions_are_refusals(pool: Sandbox) -> None:
    with pytest.raises(InputError, match="failed with Panic") as caught:
        pool.call("panic", {"path": "a.dcm"})
    assert "Smith" not in str(caught.value)


def test_output_of_libraries_is_discarded(pool: Sandbox, capfd: pytest.CaptureFixture[str]) -> None:
    assert pool.call("talk", {})[0] == {"ok": 1}
    assert capfd.readouterr() == ("", "")


def test_a_refusal_keeps_its_fields(pool: Sandbox) -> None:
    with pytest.raises(InputError) as caught:
        pool.call("refuse", {"path": "a.dcm"})
    assert str(caught.value) == "a.dcm, field 'Rows': no good (got 3, expected 4)"


def test_invalid_messages_are_refused(pool: Sandbox) -> None:
    for descriptor in range(3, 12):
        try:
            pool.call("babble", {"path": "a.dcm", "fd": descriptor}, timeout_s=2)
        except InputError as error:
            if "sensible" in str(error):
                break
    else:
        pytest.fail("no descriptor led to the reply pipe")
    assert pool.call("echo", {"n": 2})[0]["n"] == 2


def test_the_reader_cannot_write_files(pool: Sandbox, tmp_path: Path) -> None:
    target = tmp_path / "written"
    with pytest.raises(InputError):
        pool.call("write", {"path": "a.dcm", "target": str(target)})
    assert not target.exists() or target.stat().st_size == 0


def test_a_reply_above_the_cap_is_refused(pool: Sandbox) -> None:
    with pytest.raises(InputError, match="too large"):
        pool.call("echo", {"path": "a.dcm", "n": 1000}, max_reply_bytes=100)


def test_an_unsendable_reply_is_a_refusal(pool: Sandbox) -> None:
    with pytest.raises(InputError, match="cannot be sent"):
        pool.call("unsendable", {"path": "a.dcm"})
    assert pool.call("echo", {"n": 2})[0]["n"] == 2
    assert pool.started == 1


def test_threads_share_the_pool(pool: Sandbox) -> None:
    observed: list[tuple[int, int]] = []

    def work(n: int) -> None:
        for _ in range(10):
            header, arrays = pool.call("echo", {"n": n})
            observed.append((header["n"], len(arrays["a"])))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(observed) == 80
    assert all(n == length for n, length in observed)
    assert pool.started <= 2


def test_a_worker_that_died_idle_is_replaced(pool: Sandbox) -> None:
    pid = pool.call("echo", {"n": 1})[0]["pid"]
    os.kill(pid, 9)
    while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":  # the kernel ends it when it gets to it
        time.sleep(0.01)
    assert pool.call("echo", {"n": 3})[0]["n"] == 3


def test_workers_end_with_their_parent() -> None:
    code = (
        "from radweave.io.sandbox import sandbox\n"
        "box = sandbox()\n"
        "try: box.call('raster', {'path': '/nowhere', 'max_side_px': 1, 'max_pixels': 1})\n"
        "except Exception: pass\n"
        "print(box._idle[0]._process.pid)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_forked_child_gets_its_own_workers(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm")
    expected = read_dicom(path).stored_pixels()
    child = os.fork()
    if child == 0:
        same = bool((read_dicom(path).stored_pixels() == expected).all())
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (read_dicom(path).stored_pixels() == expected).all()


def test_the_reader_imports_no_torch() -> None:
    parsers = "from radweave.io import dicom_parse, parsers, raster_parse, volume_parse"
    code = f"import sys\n{parsers}\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_reader_of_a_png_imports_no_pydicom_and_no_nibabel(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    Image.new("L", (8, 8), 90).save(path)
    code = (
        "import sys\nfrom radweave.io.parsers import TASKS\n"
        f"request = {{'path': {str(path)!r}, 'max_side_px': 64, 'max_pixels': 4096}}\n"
        "assert TASKS['raster'](request)[1]['pixels'].shape == (8, 8)\n"
        "print([name for name in ('pydicom', 'gdcm', 'nibabel') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3, 4)])
def test_messages_round_trip(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=kind).reshape(shape)
    data = memoryview(b"".join(worker.encode({"x": [1, None, "a"]}, {"a": array, "b": array.T})))

    def fill(buffer: memoryview) -> None:
        nonlocal data
        buffer[:] = data[: len(buffer)]
        data = data[len(buffer) :]

    header, arrays = worker.decode(fill, max_array_bytes=10_000)
    assert header == {"x": [1, None, "a"]}
    np.testing.assert_array_equal(arrays["a"], array)
    np.testing.assert_array_equal(arrays["b"], array.T)


def test_no_objects_on_the_wire() -> None:
    with pytest.raises(worker.WireError):
        worker.encode({}, {"a": np.array([object()])})


CONTENT = "{image} Say <what> you see\n & where."
# Each has one trait of published templates: trimmed blocks, JSON, loop control, namespaces, macros, generation marks.
TEMPLATES = (
    "{% for m in messages %}\n  {{ bos_token + '[INST] ' + m['content'].strip() + ' [/INST]' }}\n{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ tools is none }}{{ documents is none }}{{ pad_token }}",
    "{% for n in range(9) %}{% if n == 2 %}{% continue %}{% elif n == 5 %}{% break %}{% endif %}{{ n }}{% endfor %}",
    "{% set ns = namespace(found=false) %}{% for m in messages %}{% set ns.found = true %}{% endfor %}{{ ns.found }}",
    "{%- macro turn(m) -%}<|{{ m.role }}|>{{ m.content | trim }}{%- endmacro -%}{{ turn(messages[0]) }}",
    "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    "{% if add_generation_prompt %}\n<|assistant|>{% endif %}",
    "{{ dict(a=1) | tojson }}{{ unknown }}{{ 'é' | upper }}{{ messages[0]['content'][:5] }}{{ eos_token }}",
)


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_render_as_in_transformers(template: str) -> None:
    tokenizer = BpeTokenizerConfig(vocab_size=300).build([])
    turn = [{"role": "user", "content": CONTENT}]
    expected = tokenizer.apply_chat_template(turn, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert render_turn(template, CONTENT, tokenizer.special_tokens_map) == expected


def test_templates_get_a_fixed_date() -> None:
    assert render_turn("{{ strftime_now('%d %b %Y') }}", CONTENT, {}) == "26 Jul 2024"
