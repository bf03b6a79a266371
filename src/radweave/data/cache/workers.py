"""Work on many images at once, as many as there are cores: the reading itself is done in processes of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from radweave.base.cores import usable_cores
from radweave.base.heap import keep_freed_pages

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, in the order of the items. A few are under way ahead, however many there are."""
    keep_freed_pages()
    cores = usable_cores()
    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(max_workers=cores) as pool:
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) > 4 * cores:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            for _, result in waiting:
                result.cancel()


def one_by_one(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
    """As ``in_order``, for work that takes less than handing it over."""
    return ((item, work(item)) for item in items)
