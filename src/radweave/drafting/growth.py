"""Composites of more findings, made for one study: the chosen report takes up sentences that state further ones.

Candidates are made before a study is seen, so that a composite states two findings at most: of three there would be too
many. Here what a study's evidence speaks for is added to its draft, one finding after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from radweave.drafting.candidates import Candidate, Sentence, SentenceLabels, compose
from radweave.drafting.choice import Choice
from radweave.labels import Labeler


class Growing:
    """The sentences that composites state one finding with, and drafts that they are put into.

    Args:
        candidates: as ``build_candidates`` makes them; without composites there is nothing to add.
        consistent: whether a sentence that all is well gives way to a finding.
    """

    def __init__(self, candidates: Sequence[Candidate], labeler: Labeler, *, consistent: bool) -> None:
        self.labels, self.consistent = SentenceLabels(labeler), consistent
        found = (
            tuple(sentence for sentence in candidate.sentences if sentence.kind == "finding")
            for candidate in candidates
        )
        stated = [group for group in dict.fromkeys(found) if group]
        self.labels.read(sentence.text for group in stated for sentence in group)
        self.sentences: Mapping[str, list[tuple[Sentence, ...]]] = defaultdict(list)
        for group in stated:
            names = frozenset().union(*(self.labels.affirmed(sentence.text) for sentence in group))
            if len(names) == 1:
                self.sentences[min(names)].append(group)

    def variants(self, draft: Choice, names: Iterable[str], barred: NDArray[np.bool_]) -> Iterator[Candidate]:
        """The draft with one finding more, for each of the classes ``names`` that it does not state.

        ``barred`` (J,) are reports of the study's own patient, which lend no sentence.
        """
        self.labels.read(sentence.text for sentence in draft.candidate.sentences)
        for name in names:
            if name in draft.asserted:
                continue
            for group in self.sentences.get(name, ()):
                if not any(barred[sentence.row] for sentence in group):
                    made = compose(draft.candidate, group, self.labels, consistent=self.consistent)
                    if made.sentences:
                        yield made
