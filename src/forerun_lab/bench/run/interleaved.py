"""The run: every contestant answers every question in turn, and each answer is saved immediately."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from time import sleep, time
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.errors import ForerunError
from forerun.engine.engine import Engine
from forerun_lab.bench.data.prompts import Reader
from forerun_lab.bench.data.questions import Question
from forerun_lab.bench.records.answers import Contestant, Match, Record, Turn
from forerun_lab.bench.records.run_folder import RunFolder
from forerun_lab.bench.records.run_plan import RunPlan
from forerun_lab.bench.run.drafters import DrafterContestant
from forerun_lab.bench.run.entrants import NONE

PAUSE_S: Final = 0.02  # lets the last contestant's threads stop spinning
WARM_UP_TOKENS: Final = 32

Open = Callable[[str, float], Contestant]  # opens a contestant by name, for a temperature
Progress = Callable[[int, str], None]  # number of answers done, and a description of the current one


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One question that all contestants answer, one after another."""

    dataset: str
    question: Question
    number: int
    repeat: int
    temperature: float

    @property
    def key(self) -> tuple[int | str, int]:
        return (self.question.question_id, self.repeat)


class BenchRun:
    """Runs a plan and saves the answers in a folder; answers already in the folder are not repeated.

    Runs are interleaved: all contestants answer a question before the next one is asked. `none` is first, and the
    order of the others is rotated by one with each question and each repeat. The data sets alternate too, so that a
    slowdown of the machine affects all rows of the report, unless the plan has task after task.
    """

    def __init__(
        self,
        plan: RunPlan,
        questions: Mapping[str, Sequence[Question]],
        folder: RunFolder,
        open_contestant: Open,
        reader: Reader,
    ) -> None:
        self._plan = plan
        self._questions = questions
        self._folder = folder
        self._open = open_contestant
        self._reader = reader
        self._contestants: dict[str, Contestant] = {}

    def play(self, on_progress: Progress) -> None:
        """Measure all missing answers."""
        num_done = 0
        for temperature in self._plan.temperatures:
            groups = list(self._groups(temperature))
            try:
                for group in groups:
                    missing = self._missing(group)
                    if missing:
                        self._open_all(temperature, group)
                        self._play_group(group, missing, partial(on_progress, num_done))
                    num_done += len(self._plan.contestants)
                    on_progress(num_done, "")
            finally:
                self._close_all()

    def _groups(self, temperature: float) -> Iterator[Group]:
        order = [
            (dataset, number, question)
            for dataset, questions in self._questions.items()
            for number, question in enumerate(questions)
        ]
        if not self._plan.task_after_task:
            order.sort(key=itemgetter(1))  # which keeps the order of the sets
        for repeat in range(self._plan.repeats):
            for dataset, number, question in order:
                yield Group(dataset=dataset, question=question, number=number, repeat=repeat, temperature=temperature)

    def _missing(self, group: Group) -> list[str]:
        """The contestants that have not answered yet: `none` first, the others in this group's order."""
        others = [name for name in self._plan.contestants if name != NONE]
        turned = (group.number + group.repeat) % max(len(others), 1)
        order = [NONE, *others[turned:], *others[:turned]]
        return [
            name for name in order
            if not self._folder.is_skipped(name, group.temperature)
            and self._folder.find(group.dataset, name, group.temperature, group.key) is None
        ]  # fmt: skip

    def _open_all(self, temperature: float, group: Group) -> None:
        """Open all contestants that can be opened, and warm them up."""
        if self._contestants:
            return
        prompt_ids = self._reader.prompt_after(group.question, ())
        params = self._plan.params(temperature, 0)
        for name in self._plan.contestants:
            if self._folder.is_skipped(name, temperature):
                continue
            try:
                self._contestants[name] = contestant = self._open(name, temperature)
                warm_up(contestant, prompt_ids[::-1], params)  # reversed, so that no drafter learns the answer
            except ForerunError as error:
                if name == NONE:
                    raise
                self._drop(name, temperature, error)

    def _drop(self, name: str, temperature: float, error: ForerunError) -> None:
        """Remove a contestant that fails, and continue without it."""
        self._folder.skip(name, temperature, str(error))
        contestant = self._contestants.pop(name, None)
        if contestant is not None:
            contestant.close()

    def _close_all(self) -> None:
        for contestant in self._contestants.values():
            contestant.close()
        self._contestants = {}

    def _play_group(self, group: Group, missing: Sequence[str], say: Callable[[str], None]) -> None:
        """Get all answers, then compare, then save. Comparing in between would warm only the caches of `none`."""
        params = self._plan.params(group.temperature, group.number)
        reference = self._folder.find(group.dataset, NONE, group.temperature, group.key)
        answers: dict[str, Record] = {}
        for name in missing:
            if name not in self._contestants:
                continue
            say(f"{name}, {group.dataset} {group.question.question_id}")
            try:
                answers[name] = self._answer(name, group, reference, params)
            except ForerunError as error:
                if name == NONE:
                    raise
                self._drop(name, group.temperature, error)
                continue
            reference = reference or answers[NONE]
        assert reference is not None, "none answers first"
        for answer in answers.values():
            self._folder.append(self._finished(group, answer, reference, params))

    def _answer(self, name: str, group: Group, reference: Record | None, params: SamplingParams) -> Record:
        """Ask the turns of a question one after another; later turns follow the answers of `none`."""
        contestant = self._contestants[name]
        turns = list[Turn]()
        started_at = time()
        contestant.forget()
        for _ in group.question.turns:
            earlier = turns if reference is None else reference.turns[: len(turns)]
            prompt_ids = self._reader.prompt_after(group.question, [turn.text for turn in earlier])
            sleep(PAUSE_S)
            turn = contestant.write(prompt_ids, params)
            turns.append(turn if turn.text else replace(turn, text=self._reader.tokenizer.decode(turn.token_ids)))
        return Record(
            question_id=group.question.question_id,
            category=group.question.category,
            contestant=name,
            dataset=group.dataset,
            temperature=group.temperature,
            turns=tuple(turns),
            repeat=group.repeat,
            started_at=started_at,
            seed=params.seed,
        )

    def _finished(self, group: Group, answer: Record, reference: Record, params: SamplingParams) -> Record:
        """Compare the answer with that of `none`; called when nothing is being timed."""
        plain = self._contestants[NONE]
        assert isinstance(plain, DrafterContestant), "none is a drafter of ours"
        is_peer = answer.contestant in self._plan.peers
        texts = [turn.text for turn in reference.turns]
        turns = []
        for place, (turn, expected) in enumerate(zip(answer.turns, reference.turns, strict=True)):
            match = None
            if not is_peer or (params.is_greedy and turn.token_ids):  # a peer has other noise, and may lack ids
                prompt_ids = self._reader.prompt_after(group.question, texts[:place])
                match = compare(turn.token_ids, expected.token_ids, prompt_ids, params, plain.engine)
            turns.append(replace(turn, match=match))
        return replace(answer, turns=tuple(turns))


def compare(
    token_ids: Sequence[int],
    expected_ids: Sequence[int],
    prompt_ids: Sequence[int],
    params: SamplingParams,
    plain: Engine,
) -> Match:
    """Whether an answer equals that of `none` to the same prompt, and if not, whether rounding can be the cause.

    Args:
        plain: the engine of `none`, which computes its margin at the first difference.
    """
    length = min(len(token_ids), len(expected_ids))
    place = next((place for place in range(length) if token_ids[place] != expected_ids[place]), length)
    if place == len(token_ids) == len(expected_ids):
        return Match(first_difference=None)
    if place == length:
        return Match(first_difference=place)  # one text is a prefix of the other, so rounding is not the cause
    margin = plain.margin_after([*prompt_ids, *expected_ids[:place]], params)
    return Match(first_difference=place, margin=margin, is_near_tie=margin < plain.near_tie(params))


def warm_up(contestant: Contestant, prompt_ids: Sequence[int], params: SamplingParams) -> None:
    """Generate some tokens with these sampling parameters, so that allocation and compilation happen now."""
    assert params.max_new_tokens is not None, "room was made for a stated number of tokens"
    num_tokens = min(WARM_UP_TOKENS, params.max_new_tokens)
    contestant.write(prompt_ids, replace(params, max_new_tokens=num_tokens, ignore_eos=True))
    contestant.forget()
