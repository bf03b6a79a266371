"""What is told of studies as a part of the distance between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from radweave.core.errors import InputError
from radweave.core.study import Study
from radweave.data.loader import Example, collate
from radweave.methods.descriptors import DescriptorsConfig
from radweave.methods.model import TrainingView
from radweave.methods.neighbours import BAGS, DescribedStudies, bags_of, fit_neighbours, kept_bags, with_bags
from radweave.nn.memory.bank import Bank

DESCRIPTORS = DescriptorsConfig(aligned=False)


def studies(contexts: Sequence[tuple[int, ...] | None]) -> list[Example]:
    pixels = np.random.default_rng(0).integers(0, 255, (len(contexts), 32, 32)).astype(np.uint8)
    return [
        Example(
            f"s{row}",
            f"p{row}",
            pixels,
            (row,),
            (1,),
            (3, 4),
            class_states=(row % 2,),
            report="Clear.",
            context_ids=ids,
        )
        for row, ids in enumerate(contexts)
    ]


def view_of(examples: Sequence[Example]) -> TrainingView:
    rows = tuple(Study(study_id=one.study_id, patient_id=one.patient_id, split="train") for one in examples)
    return TrainingView(rows, tuple(examples), ("Edema",), 0, seed=0)


def test_a_bag_does_not_depend_on_order_or_padding_and_nothing_is_empty() -> None:
    bags = bags_of(collate(studies([(5, 9), (9, 5, 5), (), (5, 9, 700, 8)]), pad_id=0))
    assert bags is not None
    assert np.array_equal(bags[0], bags[1])
    assert not bags[2].any()
    assert np.linalg.norm(bags, axis=1).tolist() == pytest.approx([1, 1, 0, 1])
    assert bags_of(collate(studies([None]), pad_id=0)) is None


def test_context_distance_is_least_for_equal_words_and_between_for_none() -> None:
    bags = bags_of(collate(studies([(5, 9), (5, 9), (7,), ()]), pad_id=0))
    assert bags is not None
    apart = with_bags(np.ones((4, 4)), bags, bags)
    same, other, nothing = apart[0, 1], apart[0, 2], apart[0, 3]
    assert same < nothing < other
    assert other == pytest.approx(1.0)
    assert np.array_equal(apart, apart.T)
    assert np.array_equal(with_bags(np.ones((1, 4)), bags[:1], bags), apart[:1]), "alone as in a batch"


def test_studies_with_equal_context_weigh_more_and_absent_context_has_no_effect() -> None:
    examples = studies([(5, 9), (7, 8), (5, 9), (7, 8), (5, 9), (7, 8)])
    extractor = DESCRIPTORS.build()
    bank = Bank((fitted := fit_neighbours(extractor, view_of(examples))).tensors, fitted.rows)
    described, nobody = DescribedStudies.of(bank), np.zeros((1, 6), dtype=bool)

    def weights(ids: tuple[int, ...]) -> np.ndarray:  # type: ignore[type-arg]
        query = Example("q", "q", examples[0].source, (0,), (1,), context_ids=ids)
        return described.evidence_for(extractor, collate([query], pad_id=0), nobody)[0].weights

    assert weights((7, 8))[1::2].sum() > weights(())[1::2].sum() > weights((5, 9))[1::2].sum()


def test_studies_without_context_are_stored_and_queried_as_before() -> None:
    plain = fit_neighbours(DESCRIPTORS.build(), view_of(studies([None] * 4)))
    assert "told" not in plain.tensors
    assert DescribedStudies.of(Bank(plain.tensors, plain.rows)).bags is None


@pytest.mark.parametrize("wrong", [torch.zeros(2, BAGS + 1), torch.zeros(2, BAGS, 1), torch.full((2, BAGS), torch.nan)])
def test_a_bank_with_other_bags_is_refused(wrong: torch.Tensor) -> None:
    bank = Bank({"told": wrong}, ({"study_id": "a", "patient": "a"}, {"study_id": "b", "patient": "b"}))
    with pytest.raises(InputError, match="field 'told': the bank does not fit"):
        kept_bags(bank)
