"""Which tables a comparison is shown as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from radweave.evaluation.tables.formats import DASH, TextTable, number


def comparison_tables(record: Mapping[str, Any]) -> list[TextTable]:
    """Tables of a comparison over studies (one per run) or over seeds, and of the judge."""
    if record["kind"] == "seeds":
        return [_seeds(record)]
    runs = list(dict.fromkeys(row["run"] for row in record["comparisons"]))
    tables = [_studies(record, run) for run in runs]
    return tables + [_judge(record, run, found) for run, found in record.get("judge", {}).items()]


def _p(value: float | None) -> str:
    return DASH if value is None else f"{value:.2e}" if value < 0.001 else f"{value:.4f}"


def _studies(record: Mapping[str, Any], run: str) -> TextTable:
    rows = []
    notes: dict[str, None] = {}
    for row in record["comparisons"]:
        if row["run"] != run:
            continue
        interval = DASH if row["low"] is None else f"[{row['low']:+.3f}, {row['high']:+.3f}]"
        difference = DASH if row["difference"] is None else f"{row['difference']:+.4f}"
        p_values = (_p(row[name]) for name in ("p_randomisation", "p_holm"))
        rows.append((row["metric"], number(row["a"]), number(row["b"]), difference, interval, *p_values))
        if row["note"]:
            notes[f"{row['metric']}: {row['note']}"] = None
    resampling = record["resampling"]
    notes[
        f"protocol {record['protocol']['name']} {record['protocol']['hash'][:8]}; {record['studies']} studies;"
        f" {resampling['resamples']} resamples, seed {resampling['seed']}; interval: paired bootstrap;"
        f" p: approximate randomisation, two-sided; Holm over {resampling['tests']} tests"
    ] = None
    head = ("metric", record["baseline"], run, "difference", "95 % interval", "p", "p Holm")
    return TextTable(f"{run} against {record['baseline']}", head, tuple(rows), tuple(notes))


def _seeds(record: Mapping[str, Any]) -> TextTable:
    first, second = record["runs"]
    rows = [
        (
            row["metric"],
            f"{row['a_mean']:.4f} ± {row['a_std']:.4f}",
            f"{row['b_mean']:.4f} ± {row['b_std']:.4f}",
            f"{row['difference']:+.4f}",
            _p(row["p"]),
            _p(row["p_holm"]),
        )
        for row in record["comparisons"]
    ]
    counts = " and ".join(str(len(group)) for group in record["seeds"])
    notes = [
        f"protocol {record['protocol']['name']} {record['protocol']['hash'][:8]}; {record['studies']} studies;"
        f" {counts} seeds; {record['test']}; standard deviation with ddof {record['std_ddof']};"
        f" Holm over {len(rows)} tests",
        "a test over seeds says nothing about other studies; compare two runs for that",
    ]
    notes.extend(f"{row['metric']}: {row['note']}" for row in record["comparisons"] if row["note"])
    return TextTable(
        f"{second} against {first} over seeds",
        ("metric", first, second, "difference", "p", "p Holm"),
        tuple(rows),
        tuple(notes),
    )


def _judge(record: Mapping[str, Any], run: str, found: Mapping[str, Any]) -> TextTable:
    rows = []
    for name, row in found["dimensions"].items():
        interval = DASH if row["interval"] is None else f"[{row['interval'][0]:.3f}, {row['interval'][1]:.3f}]"
        flips = (str(row["flipped_with_order"]),) if found["both_orders"] else ()
        rows.append((name, number(row["b_win_rate"], 3), interval, _p(row["p"]), _p(row["p_holm"]), *flips))
    head = (
        "dimension",
        f"{run} wins",
        "95 % Wilson",
        "p sign test",
        "p Holm",
        *(("flipped",) if found["both_orders"] else ()),
    )
    notes = (
        f"judge {found['judge']}, prompt {found['prompt_version']}, seed {found['seed']}:"
        f" {found['valid']} of {found['asked']} answers valid; first report chosen in"
        f" {number(found['first_slot_share'], 3)} of choices",
    )
    return TextTable(f"Judge: {run} against {record['baseline']}", head, tuple(rows), notes)
