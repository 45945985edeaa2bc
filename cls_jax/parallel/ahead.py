"""Work for the next steps, done while the devices compute."""

import collections
import concurrent.futures
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def compute_ahead(
    function: Callable[[Item], Result], items: Iterable[Item], num_ahead: int
) -> Generator[Result, None, None]:
    """The results of a function in their order, which a thread computes so many items ahead."""
    waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for item in items:
            waiting.append(executor.submit(function, item))
            if len(waiting) > num_ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
