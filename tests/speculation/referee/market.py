"""Decoding played through on a virtual clock: machines, drafters and texts that are made up, and the real chooser."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log

from forerun.core.pace import Pace
from forerun.speculation.referee.budget import DraftCosts, ProposedTree, RowBudget
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.referee.referee import Referee
from forerun.speculation.tree import TokenTree

WRONG = 10**9  # token ids from here on are in no text
STALL = 10.0  # how many times as long a stalled round takes
STALLS_IN = 200  # rounds, of which one stalls
Chance = Callable[[int], float]  # of a guess to be right, by the place in all text


def machine(**by_rows: float) -> Pace:
    """Seconds of a pass by its rows, in milliseconds as `r1=10, r8=20`; linear between."""
    points = sorted((int(rows[1:]), ms / 1e3) for rows, ms in by_rows.items())
    steps = []
    for (low, low_s), (high, high_s) in pairwise(points):
        steps += [(rows, low_s + (high_s - low_s) * (rows - low) / (high - low)) for rows in range(low, high)]
    return Pace(steps=(*steps, points[-1]))


FLAT = machine(r1=10, r2=10.2, r3=10.5, r4=11, r8=13)
MIDDLE = machine(r1=10, r2=11, r3=12, r4=14, r8=22)
STEEP = machine(r1=10, r2=18, r3=27, r4=46, r8=98)


@dataclass(frozen=True, kw_only=True)
class Skill:
    """How a made-up drafter guesses: a chain, of which each token is right with this chance.

    Args:
        chance: that a token is right if those before it were.
        proposal_s: seconds of a proposal beside its passes.
        expansion_s: seconds of a draft pass, which each token takes; None: tokens are free.
        claims: the chance that it believes in; None: what was right of late.
    """

    chance: Chance
    proposal_s: float = 0.3e-3
    expansion_s: float | None = None
    claims: float | None = None


@dataclass
class Player:
    """One drafter at work."""

    skill: Skill
    most: int
    num_true: float = 10.0
    num_seen: float = 20.0
    hits: dict[int, bool] = field(default_factory=dict)

    def is_right(self, place: int, rng: random.Random) -> bool:
        if place not in self.hits:
            self.hits[place] = rng.random() < self.skill.chance(place)
        return self.hits[place]

    def propose(self, budget: RowBudget, place: int, rng: random.Random) -> tuple[ProposedTree, float]:
        """A tree for the token at this place, and the seconds that it took without noise."""
        claims = self.num_true / self.num_seen if self.skill.claims is None else self.skill.claims
        claims = min(max(claims, 1e-3), 0.999)
        tree = TokenTree(0)
        right = True
        seconds = self.skill.proposal_s
        for depth in range(1, self.most):
            chances = [claims**level for level in range(depth)]
            if self.skill.expansion_s is not None:
                if not budget.num_nodes([chances[-1]], chances):
                    break
                budget.measure_expansion(1, self.skill.expansion_s)
                seconds += self.skill.expansion_s
            right = right and self.is_right(place + depth - 1, rng)
            tree.add(depth - 1, place + depth - 1 if right else WRONG + depth, depth * log(claims))
        self.learn(self.is_right(place, rng))
        return ProposedTree(tree=tree), seconds

    def learn(self, was_right: bool) -> None:
        self.num_true = 0.98 * self.num_true + was_right
        self.num_seen = 0.98 * self.num_seen + 1.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an answer took, without the noise of the clock, and what plain decoding would have taken."""

    seconds: float
    plain_s: float
    num_tokens: int
    rounds_by: Mapping[str, int]

    @property
    def over_plain(self) -> float:
        return self.seconds / self.plain_s


class Market:
    """A machine with some drafters and the chooser.

    Args:
        pace: the machine's passes.
        believed: what was measured of them before the first answer; None: the truth.
        noise: share by which a measured time is off at most.
    """

    def __init__(
        self,
        pace: Pace,
        skills: Mapping[str, Skill],
        *,
        seed: int = 0,
        noise: float = 0.2,
        believed: Pace | None = None,
    ) -> None:
        self.pace = pace
        self.skills = skills
        self.rng = random.Random(seed)
        self._noise = noise
        costs = RoundCosts(believed or pace)
        most = pace.steps[-1][0]
        self.players = {name: Player(skill=skill, most=most) for name, skill in skills.items()}
        own = {
            name: DraftCosts(expansion=Pace(steps=((most, skill.expansion_s),)))
            for name, skill in skills.items()
            if skill.expansion_s is not None
        }
        self.referee = Referee(dict.fromkeys(skills, most), costs, own=own)
        self.costs = costs
        self.place = 1
        self.num_begun = 0

    def write(self, num_tokens: int, temperature: float = 0.0) -> Answer:
        """An answer of so many tokens."""
        self.referee.start_answer(temperature)
        end = self.place + num_tokens
        seconds = 0.0
        who = dict[str, int]()
        begin = self.place
        while self.place < end:
            turn = self.referee.turn
            if turn.watched is not None:
                guess, spent_s = self.players[turn.watched].propose(
                    self.referee.budget(turn.watched), self.place, self.rng
                )
                self.referee.watch(guess, self._measured(spent_s))
                seconds += spent_s
            tree = TokenTree(0)
            proposal_s = 0.0
            if turn.drafter is not None:
                proposal, proposal_s = self.players[turn.drafter].propose(
                    self.referee.budget(turn.drafter), self.place, self.rng
                )
                tree = self.referee.cut(proposal)
            num_accepted = len(tree.descend(range(self.place, self.place + len(tree))))
            round_s = self.pace.step_s(len(tree))
            seconds += proposal_s + round_s
            who[turn.drafter or "none"] = who.get(turn.drafter or "none", 0) + 1
            self.referee.measure(
                num_rows=len(tree),
                token_ids=range(self.place, self.place + num_accepted + 1),
                proposal_s=self._measured(proposal_s),
                round_s=self._measured(round_s),
            )
            self.place += num_accepted + 1
        num_tokens = self.place - begin
        return Answer(seconds=seconds, plain_s=num_tokens * self.pace.step_s(1), num_tokens=num_tokens, rounds_by=who)

    def best_fixed(self, begin: int, end: int) -> tuple[str, int, float]:
        """The drafter, rows and seconds of the fastest fixed arm over this stretch of the text."""
        arms = [("none", 1, (end - begin) * self.pace.step_s(1))]
        for name, player in self.players.items():
            arms += [(name, rows, self._fixed_s(player, rows, begin, end)) for rows in range(2, player.most + 1)]
        return min(arms, key=lambda arm: arm[2])

    def _fixed_s(self, player: Player, rows: int, begin: int, end: int) -> float:
        place = begin
        seconds = 0.0
        while place < end:
            seconds += player.skill.proposal_s + (rows - 1) * (player.skill.expansion_s or 0.0) + self.pace.step_s(rows)
            num_accepted = 0
            while num_accepted < rows - 1 and player.is_right(place + num_accepted, self.rng):
                num_accepted += 1
            place += num_accepted + 1
        return seconds

    def _measured(self, seconds: float) -> float:
        """A time as a clock on a busy machine gives it."""
        stall = STALL if self.rng.random() < 1.0 / STALLS_IN else 1.0
        return seconds * stall * self.rng.uniform(1.0 - self._noise, 1.0 + self._noise)


def always(chance: float) -> Chance:
    return lambda place: chance


def totals(answers: Sequence[Answer]) -> float:
    """Seconds of all answers over those of plain decoding."""
    return sum(answer.seconds for answer in answers) / sum(answer.plain_s for answer in answers)
