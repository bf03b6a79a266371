"""Drafts of many studies through an endpoint that fails, stalls, drops and answers rubbish, killed and resumed.

    python bench/served_drafts.py WORK [--studies 2000] [--kills 3]

The server of ``tests/chat_server.py`` answers on this machine at its stated rates. ``radweave generate`` is killed
(SIGKILL) in the middle, several times, and the same command goes on. Prints the requests of each kind, and checks that
each study is drafted once or named.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.chat_server import RATES, report_for, serving_chat  # noqa: E402
from tests.toys import write_toy_dataset  # noqa: E402

RADWEAVE = [sys.executable, "-c", "from radweave.cli import main; main()"]
RUN = [
    *("data.image_size=32", "data.tokenizer.vocab_size=300", "model.served.name=toy", "model.served.concurrency=32"),
    *("model.served.timeout_s=2", "model.served.retries=3", "model.served.wait_s=0.1"),
]


def main() -> None:
    """Draft, kill, go on, and count."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    started = time.monotonic()
    dataset = write_toy_dataset(options.work / "set", options.work / "sources", counts=(12, 4, options.studies))
    out, run = options.work / "predictions.jsonl", options.work / "run"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with serving_chat(RATES, stall_s=4.0, keep_bodies=False) as server:
        train = ["train", "generator", str(dataset.path), "--out", str(run), f"model.endpoint={server.url}", *RUN]
        subprocess.run([*RADWEAVE, *train], check=True, env=environment)
        command = [*RADWEAVE, "generate", str(run), "--data", str(dataset.path), "--out", str(out)]
        command += ["--batch-size", "32"]
        print(f"made in {time.monotonic() - started:.0f} s", flush=True)
        for kill in range(1, options.kills + 1):
            job = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
            while sum(server.answered.values()) < kill * options.studies // (options.kills + 1):
                assert job.poll() is None, "it ended before it could be killed"
                time.sleep(0.01)
            job.send_signal(signal.SIGKILL)
            job.wait()
            answers = sum(server.answered.values())
            print(f"killed after {answers} answers, {time.monotonic() - started:.0f} s", flush=True)
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    drafted = [row["study_id"] for row in rows]
    named = {line.split()[2].rstrip(":") for line in done.stderr.splitlines() if line.startswith("left out s")}
    studies = {study.study_id for study in dataset.studies("test")}
    assert len(set(drafted)) == len(drafted), "a study is drafted twice"
    assert set(drafted) | named == studies, "a study is neither drafted nor named"
    assert set(drafted).isdisjoint(named)
    assert {row["hyp"] for row in rows} <= {report_for(key) for key in server.answered}
    twice = sum(count - 1 for count in server.answered.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(server.kinds.items()))
    print(f"studies {len(studies)}: drafted {len(drafted)}, named {len(named)}; exit status {done.returncode}")
    print(f"requests {sum(server.kinds.values())}: {kinds}; answers that a kill made to be asked for again {twice}")
    print(f"{time.monotonic() - started:.0f} s in all")


if __name__ == "__main__":
    main()
