"""A payload is a message that somebody could have built, or it is refused."""

import dataclasses
from typing import Any, Final, TypeVar

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from forerun.core.config import SamplingParams
from forerun.drafting.policies import RemotePolicy, TreePolicy
from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import MAX_NODES, MAX_TEXT, MAX_VOCABULARY, Failure, Message, shaping
from forerun.wires.frames import HEAD_SIZE
from tests.drafting.remote.samples import BEGIN, GREEDY, HELLO, MESSAGES, PROPOSAL, SAMPLED, SETUP, SPANS, VERDICT


def pack(message: Message) -> tuple[int, bytes]:
    """Kind and payload of a message's frame."""
    frame = KINDS.to_frame(message)
    return frame[5], frame[HEAD_SIZE:]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_told(message: Message) -> None:
    assert KINDS.read(*pack(message)) == message


def test_a_failure_of_any_length_is_told_as_far_as_there_is_room() -> None:
    for text in ("x" * (MAX_TEXT + 1), "x" + "é" * MAX_TEXT, "xx" + "木" * MAX_TEXT):
        assert KINDS.read(*pack(Failure.of(text))) == Failure(text=text[:MAX_TEXT])
    assert KINDS.read(*pack(Failure.of("no file \udcff"))) == Failure(text="no file ?")


def test_parameters_that_a_user_may_give_can_be_told_and_only_those_that_shape_scores_are() -> None:
    biases = {-1: 1.0, 0: -1e38, 2**32: 1.0, 2**70: 1.0}  # ids that no vocabulary has mean nothing
    others: dict[str, Any] = {"stop": ("secret",), "stop_token_ids": (2**70,), "seed": 1, "logprobs": 2}
    params = dataclasses.replace(SAMPLED, top_k=2**31 - 1, logit_bias=biases, max_new_tokens=3, **others)
    told = replace(BEGIN, params=shaping(params))
    assert KINDS.read(*pack(told)) == told
    assert told.params == dataclasses.replace(SAMPLED, top_k=2**31 - 1, logit_bias={0: -1e38})


Checked = TypeVar("Checked", SamplingParams, TreePolicy, RemotePolicy)


def spoilt(checked: Checked, **changes: Any) -> Checked:
    """Parameters that nobody could have built."""
    copy = dataclasses.replace(checked)
    for name, value in changes.items():
        object.__setattr__(copy, name, value)
    return copy


NAN = float("nan")
INFINITY = float("inf")
REFUSED: Final[dict[str, Message]] = {
    **{
        f"a setup with {name} {value}": replace(SETUP, **{name: value})
        for name, values in {
            "target_vocab_size": (0,),
            "verify_width": (0, MAX_NODES + 1),
            "draft_width": (0, MAX_NODES + 1),
        }.items()
        for value in values
    },
    **{
        f"a setup whose trees have {name} {value}": replace(SETUP, tree=spoilt(SETUP.tree, **{name: value}))
        for name, value in {"num_children": 0, "min_mass": NAN, "min_confidence": 1.5}.items()
    },
    **{
        f"a setup with {name} {value}": replace(SETUP, policy=spoilt(SETUP.policy, **{name: value}))
        for name, values in {"max_repairs": (0, 17), "max_lateness": (-0.5, 1.1e6, NAN, INFINITY)}.items()
        for value in values
    },
    "a hello with a third of a token": replace(HELLO, vocabulary=bytes(31)),
    "a hello with too large a vocabulary": replace(HELLO, vocabulary=bytes(MAX_VOCABULARY + 4)),
    "a hello that knows too few tokens": replace(HELLO, known=bytes(3)),
    "a number of 33 bits": replace(HELLO, pid=2**32),
    "a request below zero": replace(HELLO, request=-1),
    "a begin without a prompt": replace(BEGIN, prompt_ids=()),
    "a begin with a token of 33 bits": replace(BEGIN, prompt_ids=(2**32,)),
    "a begin with too short a mark": replace(BEGIN, owner=bytes(15)),
    "a begin with too large a seed": replace(BEGIN, seed=2**63),
    "a greedy begin with a seed": replace(BEGIN, params=GREEDY),
    "a sampled begin without a seed": replace(BEGIN, seed=None),
    **{
        f"a begin with {name} {value}": replace(BEGIN, params=spoilt(SAMPLED, **{name: value}))
        for name, value in {
            "temperature": NAN,
            "top_p": 0.0,
            "min_p": 1.5,
            "repetition_penalty": 0.0,
            "presence_penalty": 3.0,
            "frequency_penalty": NAN,
            "logit_bias": {3: INFINITY},
        }.items()
    },
    "a verdict on nothing": replace(VERDICT, base_len=0),
    "a verdict without tokens": replace(VERDICT, token_ids=()),
    **{f"a verdict after {step_s} s": replace(VERDICT, step_s=step_s) for step_s in (-0.5, 1e6, NAN, INFINITY)},
    "a proposal below nothing": replace(PROPOSAL, base_len=0),
    "a proposal without a root": replace(PROPOSAL, token_ids=(), parents=(), log_probs=()),
    "a proposal of too many nodes": replace(
        PROPOSAL, token_ids=(1,) * (MAX_NODES + 1), parents=(0,) * (MAX_NODES + 1), log_probs=(0.0,) * (MAX_NODES + 1)
    ),
    "a proposal with a parent too few": replace(PROPOSAL, parents=(0, 0, 0)),
    "a proposal with a log-probability too many": replace(PROPOSAL, log_probs=(0.0, -0.25, -1.5, -1.5, -1.5)),
    "a proposal with a node below itself": replace(PROPOSAL, parents=(0, 0, 2, 2)),
    "a proposal with a node before its parent": replace(PROPOSAL, parents=(0, 0, 3, 2)),
    "a proposal with a child likelier than its parent": replace(PROPOSAL, log_probs=(0.0, -0.25, -1.5, -1.25)),
    **{
        f"a proposal with a log-probability of {value}": replace(PROPOSAL, log_probs=(0.0, -0.25, -1.5, value))
        for value in (0.5, NAN, INFINITY, -INFINITY, -1.1e6)
    },
    "spans that end before they begin": replace(SPANS, times=((1.0, 0.5),)),
    "spans out of order": replace(SPANS, times=((1.0, 1.5), (1.25, 2.0))),
    **{f"spans from {moment}": replace(SPANS, times=((moment, 2e12),)) for moment in (-1.0, NAN, 1e12)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_values_that_no_message_has_are_refused(name: str) -> None:
    assert KINDS.read(*pack(REFUSED[name])) is None


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_field_of_another_type_or_one_too_many_is_refused(message: Message) -> None:
    kind, payload = pack(message)
    fields = msgpack.decode(payload, strict=False)
    assert KINDS.read(kind, msgpack.encode(fields)) == message
    for place in range(len(fields)):
        for other in (True, -1, "x", [[]]):
            if type(other) is not type(fields[place]) or other == [[]]:
                forged = msgpack.encode([*fields[:place], other, *fields[place + 1 :]])
                assert KINDS.read(kind, forged) is None, f"{other} in place of {fields[place]}"
    assert KINDS.read(kind, msgpack.encode([*fields, 0])) is None
