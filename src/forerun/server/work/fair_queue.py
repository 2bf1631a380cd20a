"""A bounded queue of requests that is fair between keys."""

from collections import deque
from math import ceil
from threading import Condition
from typing import Final

from forerun.server.config import ServerConfig
from forerun.server.protocols.errors import ApiError
from forerun.server.work.job import Job

SHARE_OF_A_KEY: Final = 0.5  # of max_queued_tokens
FIRST_TOKEN_S: Final = 0.02  # assumed time per token until one is measured
MAX_RETRY_S: Final = 60  # the openai client ignores longer times


class FairQueue:
    """Waiting jobs in the order in which the engine runs them.

    Every key has its own line. The next job is the first one of the key that has been given the fewest tokens so far.
    A key without waiting jobs cannot save up turns: when it returns, its count is raised to that of the key served
    last. (Start-time fair queueing, Goyal, Vin and Cheng, 1996, with tokens instead of bytes.)

    Thread-safe.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._lines: dict[str, deque[Job]] = {}
        self._given: dict[str, float] = {}
        self._clock = 0.0
        self._changed = Condition()
        self._is_closed = False
        self._token_s = FIRST_TOKEN_S
        self._num_tokens = 0

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._lines.values()))

    def put(self, job: Job) -> None:
        """Add a job at the end of its key's line.

        Raises:
            ApiError: the queue is full; the error says when to try again.
        """
        with self._changed:
            if not job.is_admitted:
                self.require_room(job.owner, job.num_tokens)
            if job.owner not in self._lines:
                self._lines[job.owner] = deque()
                self._given[job.owner] = max(self._given.get(job.owner, 0.0), self._clock)
            self._lines[job.owner].append(job)
            self._num_tokens += job.num_tokens
            self._changed.notify()

    def require_room(self, owner: str, num_tokens: int = 1) -> None:
        """Raise ApiError if a request with this many tokens does not fit; with 1, if no request fits at all."""
        with self._changed:
            line = self._lines.get(owner, ())
            num_own = sum(waiting.num_tokens for waiting in line)
            limit = self._config.max_queued_tokens
            config = self._config
            is_full = (
                len(self) >= config.max_queued
                or len(line) >= config.max_queued_per_key
                or self._num_tokens + num_tokens > limit
                or (num_own > 0 and num_own + num_tokens > limit * SHARE_OF_A_KEY)
            )
            if is_full and len(self) > 0:
                raise ApiError(
                    429,
                    "Too many requests are waiting: try again later.",
                    code="rate_limit_exceeded",
                    retry_after_s=self._retry_after_s(),
                )

    def take(self, timeout_s: float) -> Job | None:
        """The next job; None if there is none within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closed, timeout_s)
            if not self._lines:
                return None
            owner = min(self._lines, key=lambda name: self._given[name])
            job = self._lines[owner].popleft()
            self._clock = self._given[owner]
            self._given[owner] += job.num_tokens
            self._forget(owner, job)
            return job

    def remove(self, job: Job) -> None:
        """Remove a job; does nothing if it is not in the queue."""
        with self._changed:
            line = self._lines.get(job.owner)
            if line is not None and job in line:
                line.remove(job)
                self._forget(job.owner, job)

    def close(self) -> None:
        """Wake the thread that waits in `take`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def told_speed(self, num_tokens: int, seconds: float) -> None:
        """Record the speed of a request, to estimate the retry time for refused ones."""
        if num_tokens > 0:
            self._token_s += 0.2 * (seconds / num_tokens - self._token_s)

    def _forget(self, owner: str, job: Job) -> None:
        self._num_tokens -= job.num_tokens
        if not self._lines[owner]:
            del self._lines[owner]
        if not self._lines:
            self._given = {}  # no key has waiting jobs, so the counts start again
            self._clock = 0.0

    def _retry_after_s(self) -> int:
        """Estimated seconds until a tenth of the waiting tokens are done."""
        return min(MAX_RETRY_S, max(1, ceil(0.1 * self._num_tokens * self._token_s)))
