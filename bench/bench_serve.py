"""Minutes of load on a workstation with a small model, its processes killed in the middle, and what was left of it.

    python bench/bench_serve.py                                    # 1 minute, 32 clients, a run that is trained first
    python bench/bench_serve.py --minutes 10 --run RUN --database postgresql+psycopg://...

Each client asks as the pages do: it uploads a radiograph, polls the list until there is a draft, opens the study with
its pictures and those of the next one, edits and signs it, again and again. At 40 % of the time the inference process
is killed, at 50 % the server, which is started again. Then all readers sign at the same moment, each twice, of which
one signature counts, and more archives come at once than may wait. In the end every
file must be one study, drafted once, with every edit and signature that was answered: else this fails. Prints times (on
the cores that this machine has, and the clients share them) and memory.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from radweave.engine.train import train
from tests.toys import TOY_OVERRIDES, TOY_SIZES, write_toy_dataset
from tests.workstation.load import Killed, Load, free_port

SAMPLE_S = 5.0


def train_small(place: Path) -> Path:
    """Train a run of the tests' size: the server is measured, not the model.

    Of so few patients no out-of-distribution test is made, so that no image of noise is refused.
    """
    dataset = write_toy_dataset(place / "dataset", place / "sources", counts=(8, 2, 2))
    overrides = [*TOY_OVERRIDES, *TOY_SIZES["baseline"], "stages.report.epochs=6"]
    return train("baseline", dataset.path, place / "run", overrides=overrides)


def images(count: int) -> list[bytes]:
    """Radiographs of 1,024 x 1,024 pixels of noise under a smooth light: about 1 MB each."""
    made = []
    for seed in range(count):
        random = np.random.default_rng(seed)
        light = np.linspace(40, 160, 1024)[None] + np.linspace(0, 60, 1024)[:, None]
        buffer = io.BytesIO()
        Image.fromarray((light + random.integers(0, 30, light.shape)).astype(np.uint8)).save(buffer, "PNG")
        made.append(buffer.getvalue())
    return made


def resident(pid: int | None) -> float | None:
    """MiB that a process holds; None where there is none."""
    try:
        fields = Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()
    except (OSError, IndexError):
        return None
    return int(fields[0]) / 1024


class Memory(threading.Thread):
    """Looks at the memory of both processes while they run."""

    def __init__(self, server: Killed) -> None:
        super().__init__(daemon=True)
        self._server, self.samples = server, list[tuple[float, int, float | None, float | None]]()
        self._begun, self._ended = time.monotonic(), threading.Event()

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            pid = self._server.process.pid
            both = resident(pid), resident(self._server.worker)
            self.samples.append((time.monotonic() - self._begun, pid, *both))

    def end(self) -> None:
        self._ended.set()

    def lines(self) -> list[str]:
        """For each server that ran: what it held early and late, and its growth in between."""
        found = []
        for pid in dict.fromkeys(sample[1] for sample in self.samples):
            for name, place in (("server", 2), ("inference", 3)):
                rows = [(sample[0], sample[place]) for sample in self.samples if sample[1] == pid]
                kept = [(at, size) for at, size in rows if size is not None]
                settled = kept[len(kept) // 3 :]
                if len(settled) < 3:
                    continue
                slope = 60 * np.polyfit(*np.array(settled).T, 1)[0]
                sizes = [size for _, size in kept]
                found.append(
                    f"  {name:9} {kept[0][0]:4.0f} to {kept[-1][0]:4.0f} s: at a third {settled[0][1]:.0f} MiB, "
                    f"at the end {settled[-1][1]:.0f}, largest {max(sizes):.0f}; {slope:+.2f} MiB a minute from there"
                )
        return found


def table(times: dict[str, list[float]]) -> list[str]:
    rows = [f"  {'':8} {'count':>7} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8}"]
    for kind, took in sorted(times.items()):
        p50, p95, p99 = (1000 * np.percentile(took, part) for part in (50, 95, 99))
        rows.append(f"  {kind:8} {len(took):7} {p50:8.0f} {p95:8.0f} {p99:8.0f}")
    return rows


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--archives", type=int, default=2, help="of 20 images from each client at once in the end")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--database")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run = options.run or train_small(place)
        port = free_port()
        command = [
            sys.executable,
            "-c",
            "from radweave.cli import main; main()",
            "serve",
            str(run),
            "--port",
            str(port),
        ]
        server = Killed([*command, *(["--database", options.database] if options.database else [])], port, place)
        load, memory = Load(server, images(24)), Memory(server)
        memory.start()
        seconds = 60 * options.minutes

        def kill() -> None:
            time.sleep(0.4 * seconds)
            server.kill_worker()
            time.sleep(0.1 * seconds)
            server.kill_and_start()

        try:
            begun = time.monotonic()
            load.run(options.clients, seconds, kill)
            took, sent = time.monotonic() - begun, len(load.names)
            times = {kind: list(rows) for kind, rows in load.times.items()}
            closing = load.close(options.clients)
            answers = load.burst(options.clients, 20, uploads=options.archives)
            total = load.check()
        finally:
            memory.end()
            code = server.stop()
    print(f"{options.clients} clients, {took:.0f} s: {sent} studies, each drafted once; {len(load.edits)} edits and")
    print(f"{len(load.signed)} signatures, each once; away for {load.counts['away']} tries, busy for")
    print(f"{load.counts['full']}; its end: {code}")
    p50, p95 = (1000 * np.percentile(closing.answered_s, part) for part in (50, 95))
    print(f"then all signed within {1000 * closing.spread_s:.0f} ms, each twice, and one counts: p50 {p50:.0f} ms,")
    print(f"p95 {p95:.0f} ms, greatest {1000 * max(closing.answered_s):.0f} ms")
    archives = options.clients * options.archives
    print(f"then {archives} archives of 20 at once: {dict(answers)}; in all {total} studies, none twice")
    print("\n".join(table(times)))
    print("\n".join(memory.lines()))


if __name__ == "__main__":
    main()
