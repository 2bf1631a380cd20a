"""Several conversations stay warm: what is reused is the same with every drafter, and no text changes by it."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from forerun import (
    Automatic,
    ConfigError,
    DraftModel,
    Engine,
    EngineConfig,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    SamplingParams,
    TokenRecycling,
)
from forerun.core.config import SAVED_BYTES
from forerun.core.drafter_config import DrafterConfig, DraftHead
from forerun.core.shared_length import shared_length
from forerun.core.steps import DraftedTree
from forerun.model.runner import LEAST_ROWS
from forerun.text.tokenizer import Tokenizer
from tests.drafting.heads.published import builtin_head
from tests.marks import rest_slow
from tests.varied import engine_with

DRAFTERS: dict[str, DrafterConfig] = {
    "none": NoDrafter(),
    "prompt_lookup": PromptLookup(adaptive=False),
    "recycling": TokenRecycling(adaptive=False),
    "draft_model": DraftModel(adaptive=False),
    "parallel": Parallel(draft=DraftModel()),
    "layer_skip": LayerSkip(adaptive=False, search="off"),
    "eagle3": DraftHead(model=builtin_head("eagle3"), adaptive=False),
    "auto": Automatic(),
    "dflash": DraftHead(model=builtin_head("dflash"), adaptive=False),
}
SYSTEM = ("You write short and simple programs, with names that say what things are, and no comments at all.\n", "")
ASKED = (
    "def read_lines(path):\n    with open(path) as file:\n",
    "import os\n\nfor name in os.listdir('.'):\n",
    "class Tree:\n    def __init__(self, left, right):\n",
    "# the sum of the squares of all numbers up to n\n",
)
SETTINGS = {"num_threads": 1, "max_length": 640}
OWNERS = ("", "ann", "bob", "ann")
ACTIONS = ("ask", "ask", "edit", "again", "several", "cancel")
NUM_REQUESTS = 10


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request, what it wrote, and how many tokens of its prompt were not computed again."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    owner: str
    token_ids: tuple[int, ...]  # of one that was cancelled only those that every drafter had written
    num_reused: int


@dataclass
class Talk:
    """A conversation as a client sees it: the ids up to each of its questions, and those up to the last answer."""

    owner: str
    questions: list[list[int]] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)


class Client:
    """Holds several conversations at once, and goes on with any of them, as the numbers of a seed say."""

    def __init__(self, engine: Engine, seed: int, num_talks: int = 4, actions: Sequence[str] = ACTIONS) -> None:
        self._engine = engine
        self._rng = random.Random(seed)
        self._actions = actions
        self.asked: list[Asked] = []
        self._talks = [Talk(OWNERS[number % len(OWNERS)]) for number in range(num_talks)]
        for talk in self._talks:
            talk.answered = engine.encode(self._rng.choice(SYSTEM) + self._rng.choice(ASKED))

    def go_on(self) -> None:
        """One more question, an edited one, an answer written again, several from one prompt, or one given up."""
        rng = self._rng
        talk = self._rng.choice(self._talks)
        action = rng.choice(self._actions) if talk.questions else "ask"
        match action:
            case "ask":
                self._ask(talk, [*talk.answered, *self._question()])
            case "edit":
                earlier = rng.choice(talk.questions)
                self._ask(talk, [*earlier[: rng.randint(len(earlier) // 2, len(earlier))], *self._question()])
            case "again":
                self._ask(talk, rng.choice(talk.questions))
            case "several":
                for _ in range(3):
                    self._ask(talk, talk.questions[-1])
            case "cancel":
                self._give_up(talk, [*talk.answered, *self._question()])

    def _question(self) -> list[int]:
        return self._engine.encode("\n" + self._rng.choice(ASKED))[: self._rng.choice([1, 9, 40])]

    def _params(self) -> SamplingParams:
        rng = self._rng
        stop = ("\n\n",) if rng.random() < 0.3 else ()
        return SamplingParams(
            temperature=rng.choice([0.0, 0.7]), seed=rng.randrange(3), max_new_tokens=rng.choice([1, 7, 24]), stop=stop
        )

    def _ask(self, talk: Talk, prompt_ids: list[int]) -> None:
        prompt_ids = prompt_ids[-500:]
        params = self._params()
        result = self._engine.generate(prompt_ids, params, owner=talk.owner)
        self._note(talk, prompt_ids, params, result.token_ids, result.stats.num_reused_tokens)

    def _give_up(self, talk: Talk, prompt_ids: list[int]) -> None:
        """Cancel in the middle. A drafter has written more by then, which the client does not want."""
        prompt_ids = prompt_ids[-500:]
        params = replace(self._params(), max_new_tokens=24, stop=())
        num_wanted = self._rng.randint(0, 12)
        token_ids = list[int]()
        with self._engine.stream(prompt_ids, params, owner=talk.owner) as stream:
            for step in stream:
                token_ids += step.token_ids
                if len(token_ids) > num_wanted:
                    break
        reused = stream.result().stats.num_reused_tokens
        self._note(talk, prompt_ids, params, tuple(token_ids[:num_wanted]), reused)
        other = (token_ids[num_wanted] + 1) % 256 if len(token_ids) > num_wanted else 5
        talk.answered.append(other)  # else it might be what was written behind the wanted ones

    def _note(
        self, talk: Talk, prompt_ids: list[int], params: SamplingParams, token_ids: tuple[int, ...], num_reused: int
    ) -> None:
        talk.questions.append(prompt_ids)
        talk.answered = [*prompt_ids, *token_ids]
        self.asked.append(
            Asked(
                prompt_ids=tuple(prompt_ids), params=params, owner=talk.owner, token_ids=token_ids,
                num_reused=num_reused,
            )
        )  # fmt: skip


def talk_with(engine: Engine, seed: int) -> list[Asked]:
    """What a client's requests came to."""
    client = Client(engine, seed)
    while len(client.asked) < NUM_REQUESTS:
        client.go_on()
    return client.asked


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with engine_with(NoDrafter(), **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module", params=rest_slow(DRAFTERS, 7))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine_with(DRAFTERS[request.param], **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain_talk(plain: Engine) -> list[Asked]:
    """What plain decoding makes of a client's requests."""
    plain.forget()
    return talk_with(plain, 1)


def test_every_drafter_reuses_what_plain_decoding_does_and_writes_its_texts(
    engine: Engine, plain_talk: list[Asked]
) -> None:
    for number, (theirs, ours) in enumerate(zip(plain_talk, talk_with(engine, 1), strict=True)):
        assert ours == theirs, f"request {number}"


@pytest.mark.slow
@pytest.mark.parametrize(("cache_bytes", "actions"), [(SAVED_BYTES, ACTIONS), (1_000_000, ACTIONS[:-1])])
@pytest.mark.parametrize("drafter", [name for name in DRAFTERS if name != "none"])
def test_200_conversations_are_reused_as_without_a_drafter(
    drafter: str, cache_bytes: int, actions: Sequence[str]
) -> None:
    """Where room is short, no text is given up: how much of such a text takes room is a matter of time."""
    found = []
    for config in (NoDrafter(), DRAFTERS[drafter]):
        with engine_with(config, **SETTINGS, cache_bytes=cache_bytes) as engine:
            client = Client(engine, 7, num_talks=200, actions=actions)
            while len(client.asked) < 1000:
                client.go_on()
            found.append(client.asked)
    assert found[0] == found[1]
    assert sum(one.num_reused for one in found[0]) > sum(len(one.prompt_ids) for one in found[0]) // 4


@pytest.mark.parametrize("seed", rest_slow(range(2), 1))
def test_what_is_reused_is_the_longest_beginning_of_the_owners_and_changes_no_text(plain: Engine, seed: int) -> None:
    plain.forget()
    asked = talk_with(plain, seed)
    known: dict[str, list[tuple[int, ...]]] = {}
    for one in asked:
        prefix = one.prompt_ids[:-1]
        longest = max([shared_length(prefix, text) for text in known.get(one.owner, ())], default=0)
        assert longest - LEAST_ROWS <= one.num_reused <= longest
        known.setdefault(one.owner, []).append((*one.prompt_ids, *one.token_ids))
    assert sum(one.num_reused for one in asked) > sum(len(one.prompt_ids) for one in asked) // 2
    for one in asked:
        plain.forget()
        alone = plain.generate(one.prompt_ids, one.params)
        assert alone.token_ids[: len(one.token_ids)] == one.token_ids
        assert alone.stats.num_reused_tokens == 0


@pytest.mark.parametrize("cache_bytes", [pytest.param(0, marks=pytest.mark.slow), 100_000])
def test_where_room_is_short_texts_stay_right_and_every_drafter_reuses_the_same(
    plain: Engine, cache_bytes: int
) -> None:
    found = []
    for drafter in (NoDrafter(), DraftModel(adaptive=False)):
        with engine_with(drafter, **SETTINGS, cache_bytes=cache_bytes, measures_speedup=True) as engine:
            found.append(talk_with(engine, 4))
    assert found[0] == found[1]
    plain.forget()
    ample = talk_with(plain, 4)
    assert [one.token_ids for one in ample] == [one.token_ids for one in found[0]]
    assert sum(one.num_reused for one in found[0]) < sum(one.num_reused for one in ample)


GREEDY = SamplingParams(max_new_tokens=16, ignore_eos=True)


def shown(trees: Sequence[DraftedTree | None], tokenizer: Tokenizer) -> str:
    """The text of every path of these trees."""
    paths = []
    for tree in trees:
        for node in range(1, 0 if tree is None else len(tree.token_ids)):
            path: list[int] = []
            while node > 0:
                path.append(tree.token_ids[node])
                node = tree.parents[node]
            paths.append(tokenizer.decode(path[::-1]))
    return "\n".join(paths)


def test_no_tree_shows_what_another_owner_wrote() -> None:
    """A table that learnt from one's text would propose its words to the next one, who can look at the trees."""
    secret = "password = 'hunter2zebra'\n" * 3
    asked = "password = '"
    with engine_with(DRAFTERS["recycling"], **SETTINGS) as engine:
        for owner, expected in (("ann", False), ("bob", True)):
            engine.generate(secret, GREEDY, owner=owner)
            trees = [step.stats.tree for step in engine.stream(asked, GREEDY, owner="bob")]
            assert ("hunter2" in shown(trees, engine.tokenizer)) == expected


def test_a_size_below_0_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cache_bytes -1 must lie in \[0, 2\*\*60\]"):
        EngineConfig(cache_bytes=-1)
