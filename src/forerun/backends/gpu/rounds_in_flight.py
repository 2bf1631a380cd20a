"""Rounds in flight: the device runs one while the host reads the previous one."""

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from forerun.backends.device_rounds import PlayedRound
from forerun.backends.gpu.rounds import DeviceRounds
from forerun.backends.gpu.tree.device_tree import read_outcome

ROUNDS_AHEAD: Final = 2  # Rounds in flight at a time, including the awaited one.


@dataclass(slots=True)
class RoundInFlight:
    """A round that was launched.

    Args:
        outcome: on the host; complete once the event `arrived` has happened, or at once if that is None.
        is_usual: no kernel was compiled and no graph recorded while it was in flight.
    """

    depth: int
    launched_at: float
    outcome: Tensor
    arrived: torch.cuda.Event | None
    is_usual: bool


class Pipeline:
    """Launches rounds and returns their outcomes in launch order."""

    def __init__(self, rounds: DeviceRounds) -> None:
        self.rounds = rounds
        self._device = torch.device(rounds.target.runner.device)
        shape = rounds.tree.outcome.shape
        is_cuda = self._device.type == "cuda"
        self._outcomes = [torch.zeros(shape, dtype=torch.int32, pin_memory=is_cuda) for _ in range(ROUNDS_AHEAD)]
        self._in_flight: deque[RoundInFlight] = deque()
        self._last_arrived_at = 0.0
        self.num_launched = 0

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def has_room(self) -> bool:
        return len(self._in_flight) < ROUNDS_AHEAD

    def clear(self) -> None:
        """Drop the rounds in flight, which run to their end."""
        self._in_flight.clear()
        self._last_arrived_at = 0.0

    def launch(self, depth: int, num_tokens: int) -> None:
        """Launch a round of this many draft passes, given the length of the text before the rounds in flight."""
        longest = num_tokens + len(self) * self.rounds.config.verify_width
        launched_at = perf_counter()
        is_usual = self.rounds.launch(depth, longest)
        outcome = self._outcomes[self.num_launched % ROUNDS_AHEAD]
        self.num_launched += 1
        outcome.copy_(self.rounds.tree.outcome, non_blocking=True)
        arrived = None
        if self._device.type == "cuda":
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(torch.cuda.current_stream(self._device))
        for other in self._in_flight:
            other.is_usual &= is_usual  # The host was busy and noticed its end late.
        self._in_flight.append(RoundInFlight(depth, launched_at, outcome, arrived, is_usual))

    def take(self) -> PlayedRound:
        """Wait for the oldest round in flight."""
        first = self._in_flight.popleft()
        if first.arrived is not None:
            first.arrived.synchronize()
        outcome = read_outcome(first.outcome)
        began_at = max(self._last_arrived_at, first.launched_at)
        self._last_arrived_at = perf_counter()
        return PlayedRound(
            depth=first.depth, outcome=outcome, began_at=began_at, arrived_at=self._last_arrived_at,
            is_usual=first.is_usual,
        )  # fmt: skip
