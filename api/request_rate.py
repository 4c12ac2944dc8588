"""How often a key may ask this process: a bucket of tokens for each key."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from autodeploy.errors import LimitError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable

# A page asks for several things at once; whoever asks evenly never notices.
BURST_S = 10.0
# Keys whose bucket is remembered; a bucket that is forgotten is full again.
MOST_KEYS = 10_000


class RequestRate:
    """Used by the event loop alone, so nothing is locked.

    Parameters
    ----------
    per_s : requests of a key a second, in the long run; BURST_S seconds' worth may come at once.
    clock : seconds.
    """

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * BURST_S)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key_id: str) -> None:
        """Counts a request.

        Raises
        ------
        LimitError
            when the bucket is empty, with the seconds until there is a token again.
        """
        now_s = self._clock()
        tokens, then_s = self._buckets.pop(key_id, (self._most, now_s))
        tokens = min(self._most, tokens + (now_s - then_s) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[key_id] = (tokens - 1.0 if allowed else tokens, now_s)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise LimitError(
                Message("api.more_than_requests_second_of_this_key", count=self._per_s),
                hint=Message("api.ask_less_often_prefer_wait_and_events_tell"),
                retry_after_s=math.ceil((1.0 - tokens) / self._per_s),
            )
