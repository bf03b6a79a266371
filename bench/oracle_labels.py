"""What bounds a draft: the true findings through a run's text stage, in place of what the run sees.

    python bench/oracle_labels.py RUN DATASET --split val --out oracle.jsonl
    radweave evaluate oracle.jsonl

Each study's wording is what the run says of it, each finding's probability 0 or 1 by the study's own report. How far
the findings of these drafts are from the report's is lost between findings and text; the rest is lost before.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from radweave.core.errors import InputError
from radweave.core.json_files import write_jsonl
from radweave.data.cache.images import build_cache
from radweave.data.dataset import Dataset
from radweave.data.loader import StudyLoader
from radweave.drafting.candidates import affirmed_classes
from radweave.drafting.writer import UtilityWriter
from radweave.engine.expected_utility import Opened
from radweave.engine.prepare import prepare
from radweave.engine.restore import restore
from radweave.labels import get_labeler

SURE = 20.0
"""Log-odds of what is known."""


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", choices=("val", "test"), default="val")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    run, dataset = restore(options.run), Dataset.open(options.dataset)
    if run.drafting is None:
        raise InputError("the run cannot draft by expected utility", file=options.run)
    data, opened = run.experiment.data, Opened.of(run.drafting.folder, run.model)
    cache = build_cache(dataset, size=data.image_size, ct=data.ct)
    prepared = prepare(dataset, options.split, run.experiment, run.tokenizer, cache, need_text=False)
    config, labeler = run.experiment.decoding.expected_utility, get_labeler(data.label_set)
    # The curves are left out: what is known needs none.
    known = {
        name: one.model_copy(update={"slope": 1.0, "offset": 0.0})
        for name, one in run.drafting.calibration.classes.items()
    }
    calibration = run.drafting.calibration.model_copy(update={"classes": known, "source": "stack"})
    writer, rows = UtilityWriter(opened.store, calibration, config), []
    for batch in StudyLoader(prepared.examples, 16, 0).epoch():
        references = [prepared.references[study_id] for study_id in batch.study_ids]
        truth = affirmed_classes(references, labeler)
        each = zip(opened.evidence_for(batch), truth, opened.barred(batch), batch.study_ids, references, strict=True)
        for said, labels, barred, study_id, reference in each:
            sure = replace(said, scores=np.where(labels > 0, SURE, -SURE), shown={}, changes=None)
            draft = writer.write(sure, barred).text
            rows.append({"study_id": study_id, "modality": data.modality, "hyp": draft, "ref": reference})
    write_jsonl(options.out, rows)
    print(f"{len(rows)} drafts: {options.out}")


if __name__ == "__main__":
    main()
