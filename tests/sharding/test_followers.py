"""A follower that hears what its leader does has the same cache, byte for byte."""

import random
import socket
import threading
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import msgpack

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import CacheFormat
from forerun.model.executor import CacheMove, ForwardInput, TextMove, TokenChoice, Told
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.sharding.executor import SharedExecutor
from forerun.sharding.follower import Follower, follow_leader
from forerun.sharding.followers import is_there
from forerun.sharding.messages import KINDS, ToFollower, messages_from, to_frame
from forerun.sharding.plan import plan_shards
from forerun.sharding.weights import ShardedWeights
from forerun.speculation.tree import ancestry_matrix
from forerun.wires.frames import HEAD_SIZE, FrameReader
from tests.backends.torch.ops import random_parents
from tests.sharding.thread_group import Meeting, ThreadGroup
from tests.sliding import lose_early
from tests.tiny import CAPACITY, plain_spec, random_weights

CACHE_BYTES = 40_000  # some texts
HANG_S = 30.0


def alone() -> ThreadGroup:
    return ThreadGroup(rank=0, num_ranks=1, meeting=Meeting(barrier=threading.Barrier(1)))


def heard(told: Told) -> ToFollower:
    """What arrives of it."""
    (message,) = FrameReader(KINDS).feed(to_frame(told))
    return message


@pytest.mark.parametrize("seed", range(20))
def test_followers_have_the_cache_of_their_leader(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    spec = plain_spec(window=5, sliding_layers=(1,)) if seed % 2 else plain_spec()
    lose_early(monkeypatch, margin=40, step=2)
    weights = random_weights(spec, torch.Generator().manual_seed(seed))
    (plan,) = plan_shards(spec, 1)
    form: CacheFormat = "int8" if seed % 3 == 0 else "model"
    cache = TreeCache(spec, CAPACITY, dtype=torch.float64, device="cpu", format=form)
    own = ShardedWeights(LoadedWeights(dict(weights)), spec, plan)
    executor = SharedExecutor(spec, own, cache, backend=REFERENCE, plan=plan, group=alone())
    follower = Follower(cache, WarmTexts(cache, CACHE_BYTES), executor)
    leader = Runner(
        spec,
        None,
        backend=REFERENCE,
        make_executor=lambda own: SharedExecutor(
            spec, LoadedWeights(dict(weights)), own, backend=REFERENCE, plan=plan, group=alone()
        ),
        capacity=CAPACITY,
        dtype=torch.float64,
        device="cpu",
        cache_format=form,
        cache_bytes=CACHE_BYTES,
        tell=lambda told: nullcontext(follower.follow(heard(told))),
    )
    texts = [[rng.randrange(spec.vocab_size) for _ in range(80)] for _ in range(3)]
    for _ in range(30):
        do_something(leader, rng, texts)
        end = leader.cache.end
        assert (cache.committed_len, cache.num_tree) == (leader.cache.committed_len, leader.cache.num_tree)
        assert cache.sliding.whole_from == leader.cache.sliding.whole_from
        assert torch.equal(cache.storage_2LSKD[:, :, :end], leader.cache.storage_2LSKD[:, :, :end])


def do_something(leader: Runner, rng: random.Random, texts: list[list[int]]) -> None:
    """A request's beginning, a round, or an end."""
    match rng.choice(["recall", "recall", "round", "round", "round", "forget"]):
        case "recall":
            text = rng.choice(texts)[: rng.randint(1, 80)]
            owner = rng.choice(["", "ö", "somebody else"])
            leader.recall(text, owner)
            leader.sync(text)
        case "forget":
            leader.forget(rng.choice([None, "ö"]))
        case _:
            parents = random_parents(rng, rng.randint(1, 6))
            if leader.cache.end + len(parents) > CAPACITY:
                leader.forget()
            play_round(leader, rng, parents)


def play_round(leader: Runner, rng: random.Random, parents: list[int]) -> None:
    """A tree, of which some rows stay."""
    ancestry = ancestry_matrix(parents)
    start = leader.cache.committed_len
    token_ids = [rng.randrange(leader.spec.vocab_size) for _ in parents]
    leader.forward(
        ForwardInput(
            token_ids=token_ids,
            positions=[start + int(row.sum()) - 1 for row in ancestry],
            first_slot=leader.cache.end,
            prefix_len=start,
            ancestry=ancestry,
            num_logit_rows=len(parents),
        )
    )
    leader.commit([0], token_ids[:1])


def test_a_rank_of_another_host_answers_while_it_is_in_a_pass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        leaders = socket.create_connection(listener.getsockname())
        followers = listener.accept()[0]
    in_pass = threading.Event()
    may_end = threading.Event()
    done = list[ToFollower]()

    class Slow(Follower):
        def __init__(self) -> None:
            pass

        def follow(self, told: ToFollower) -> None:
            in_pass.set()
            assert may_end.wait(HANG_S)
            done.append(told)

    with leaders, followers:
        thread = threading.Thread(target=follow_leader, args=(followers, messages_from(followers), Slow()))
        thread.start()
        told = [CacheMove(length=number) for number in range(3)]
        for move in told:
            leaders.sendall(to_frame(move))
        assert in_pass.wait(HANG_S)
        assert is_there(leaders)
        assert not done
        may_end.set()
        leaders.settimeout(HANG_S)
        leaders.shutdown(socket.SHUT_WR)
        thread.join(HANG_S)
        assert done == told
        followers.close()
        assert not is_there(leaders)


def same(told: ForwardInput, other: ToFollower) -> bool:
    assert isinstance(other, ForwardInput)
    masks = ("ancestry", "row_skips")
    plain = dict.fromkeys(masks)
    return replace(told, **plain) == replace(other, **plain) and all(
        np.array_equal(getattr(told, name), getattr(other, name)) for name in masks
    )


@pytest.mark.parametrize("seed", range(30))
def test_messages_say_everything(seed: int) -> None:
    rng = random.Random(seed)
    num_rows = rng.randint(1, 20)
    num_tree = rng.randint(0, 20)
    prefix = rng.randint(0, 2**20)
    shape = num_rows, num_tree + num_rows
    inputs = ForwardInput(
        token_ids=[rng.randrange(2**31) for _ in range(num_rows)],
        positions=[rng.randrange(2**20) for _ in range(num_rows)],
        first_slot=prefix + num_tree,
        prefix_len=prefix,
        ancestry=rng.choice([None, np.random.default_rng(seed).random(shape) < 0.5]),
        num_logit_rows=rng.randint(0, num_rows),
        skipped=frozenset((rng.randrange(80), rng.choice(["attention", "mlp"])) for _ in range(rng.randrange(4))),
        row_skips=rng.choice([None, np.random.default_rng(seed).random((num_rows, 6)) < 0.5]),
        taps=tuple(sorted({rng.randrange(80) for _ in range(rng.randrange(3))})),
        choice=rng.choice([None, TokenChoice(seed=rng.choice([None, 0, 2**64 - 1]), temperature=rng.random())]),
    )
    assert same(inputs, heard(inputs))
    for told in (
        CacheMove(length=rng.randrange(2**30), rows=tuple(range(rng.randrange(9))), num_committed=2, num_adopted=7),
        TextMove(kind="restore", token_ids=[1, 2**31 - 1], start=3),
        TextMove(kind="forget", token_ids=[], owner=None),
    ):
        assert heard(told) == told


@pytest.mark.parametrize(
    "mask", [[2, 3], [2, 3, b""], [2, 3, b"xx"], [2**40, 2**40, b"x"], [-2, -3, b"x"], ["2", 3, b"x"], 5]
)
def test_a_mask_with_another_number_of_bits_is_refused(mask: object) -> None:
    told = ForwardInput(token_ids=[1, 2], positions=[0, 1], first_slot=1, prefix_len=0, ancestry=np.ones((2, 3), bool))
    kind = to_frame(told)[5]
    payload = to_frame(told)[HEAD_SIZE:]
    assert same(told, KINDS.read(kind, payload))
    fields = msgpack.decode(payload)
    assert KINDS.read(kind, msgpack.encode(fields | {"ancestry": mask})) is None
