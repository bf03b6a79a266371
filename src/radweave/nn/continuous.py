"""Continuous batching: reports of different lengths are written side by side; who is done leaves, who waits enters.

The rows of a ``SlotCache`` are dealt out in seats: one row for a report, or as many as it has beams. Between two steps
every free seat is given to a report that waits, whose prompt was read by itself. The next batch of prompts is asked for
when a seat is free and none waits. Where none waits any more, those who are left move together and steps get smaller.

Source: Yu et al., "Orca", OSDI 2022, Sec. 3.1 (scheduling by iteration).
Deviations: prompts are read between the steps, one by one, not together with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from radweave.nn.beams import BeamSearch, next_beams
from radweave.nn.decoding import DecodingConfig, Prefixes, Written
from radweave.nn.next_token import refuse_too_long
from radweave.nn.next_words import Line, next_words
from radweave.nn.slots import Prompt, ReadPrompt, SlotCache

Job = Line | BeamSearch


@dataclass(slots=True)
class Study:
    """A study's prompt, and the reports that are written after it."""

    prompt: Prompt
    jobs: list[Job]
    read: ReadPrompt | None = None

    @property
    def is_done(self) -> bool:
        return all(job.is_done for job in self.jobs)


@dataclass(slots=True)
class Room:
    """Seats, who sits there, and who waits. A seat is ``takes`` rows."""

    slots: SlotCache
    takes: int
    seats: list[tuple[Study, Job] | None]
    waiting: deque[tuple[Study, Job]] = field(default_factory=deque)

    @property
    def seated(self) -> list[tuple[int, Study, Job]]:
        return [(seat, *one) for seat, one in enumerate(self.seats) if one is not None]

    @property
    def has_room(self) -> bool:
        return not self.waiting and None in self.seats

    def rows_of(self, seat: int) -> range:
        return range(seat * self.takes, (seat + 1) * self.takes)

    def enter(self) -> None:
        """Give free seats to those who wait. A prompt is read once, when the first of its reports sits down."""
        for seat, one in enumerate(self.seats):
            if one is not None or not self.waiting:
                continue
            study, job = self.waiting.popleft()
            study.read = study.read or self.slots.read(study.prompt)
            self.slots.seat(study.read, self.rows_of(seat))
            self.seats[seat] = (study, job)
            if job is study.jobs[-1]:
                study.read = None

    def choose(self, decoding: DecodingConfig, eos_id: int) -> None:
        """The next word of every report that is being written; who is done leaves."""
        seated = self.seated
        rows = [row for seat, _, _ in seated for row in self.rows_of(seat)]
        scores = self.slots.scores[rows]
        jobs: list[Any] = [job for _, _, job in seated]
        (next_words if decoding.num_beams == 1 else next_beams)(jobs, scores, decoding, eos_id)
        self.seats = [None if one is not None and one[1].is_done else one for one in self.seats]

    def step(self) -> None:
        """Give each report its last word, in the rows that it goes on from."""
        seated = self.seated
        places = [len(study.prompt.embeds) + job.length - 1 for _, study, job in seated]
        sources = [seat * self.takes + source for seat, _, job in seated for source in job.sources]
        targets = [row for seat, _, _ in seated for row in self.rows_of(seat)]
        if not self.waiting and not self.slots.compiled:  # those who are left move together: steps get smaller
            empty: list[tuple[Study, Job] | None] = [None] * (len(self.seats) - len(seated))
            self.seats = [*((study, job) for _, study, job in seated), *empty]
            targets = list(range(len(targets)))
        self.slots.move(sources, targets, max(places))
        tokens = dict(zip(targets, (token for _, _, job in seated for token in job.tokens), strict=True))
        where = dict(zip(targets, (place for place in places for _ in range(self.takes)), strict=True))
        rows = range(max(targets) + 1)
        self.slots.step([tokens.get(row, 0) for row in rows], [where.get(row, 0) for row in rows])


def write_in_slots(
    model: Any,
    batches: Iterator[Prefixes],
    decoding: DecodingConfig,
    *,
    eos_id: int,
    draws: int | None = None,
    seats: int = 0,
) -> Iterator[Written]:
    """Reports for batches of prompts, in order; see ``radweave.nn.decoding.write``.

    With ``draws`` each study has its likeliest report and that many drawn ones, one after the other. ``seats`` is how
    many reports are written at once, if that is more than the first batch has that holds a study.
    """
    room: Room | None = None
    unfinished: deque[list[Study]] = deque()
    more = True
    while more or unfinished:
        while more and (room is None or room.has_room):
            prompts = next(batches, None)
            if prompts is None:
                more = False
                break
            studies = [Study(prompt, _jobs(decoding, draws)) for prompt in _rows_of(prompts)]
            for study in studies:
                length = len(study.prompt.embeds) + decoding.max_new_tokens
                refuse_too_long(model.config, length, "decoding.max_new_tokens")
            unfinished.append(studies)
            if not studies:
                break
            if room is None:
                room = _room(model, decoding, seats=max(seats, sum(len(study.jobs) for study in studies)))
            room.waiting.extend((study, job) for study in studies for job in study.jobs)
        if room is not None:
            room.enter()
            if room.seated:
                room.choose(decoding, eos_id)
        while unfinished and all(study.is_done for study in unfinished[0]):
            reports = [job.report for study in unfinished.popleft() for job in study.jobs]
            yield [ids for ids, _ in reports], [log_probs for _, log_probs in reports]
        if room is not None and room.seated:
            room.step()


def _room(model: Any, decoding: DecodingConfig, *, seats: int) -> Room:
    takes = decoding.num_beams
    slots = SlotCache(model, rows=seats * takes, spare=decoding.max_new_tokens, compile=decoding.compile)
    return Room(slots, takes, [None] * seats)


def _jobs(decoding: DecodingConfig, draws: int | None) -> list[Job]:
    """The reports that are written for one study."""
    if draws is not None:
        return [Line(), *(Line.drawn(decoding, draw) for draw in range(draws))]
    if decoding.num_beams > 1:
        return [BeamSearch.of(decoding.num_beams)]
    return [Line.drawn(decoding, 0) if decoding.do_sample else Line()]


def _rows_of(prompts: Prefixes) -> Iterator[Prompt]:
    """Each study's prompt without the padding that its neighbours brought."""
    for row in range(len(prompts)):
        memory = None
        if prompts.memory is not None and prompts.memory_mask is not None:
            memory = prompts.memory[row][prompts.memory_mask[row]]
        yield Prompt(prompts.embeds[row][prompts.mask[row]], memory)
