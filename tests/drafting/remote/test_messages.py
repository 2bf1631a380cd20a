"""A payload is a message that somebody could have built, or it is refused."""

from dataclasses import replace
from typing import Any, Final, TypeVar

import pytest

from forerun.core.config import SamplingParams
from forerun.drafting.remote.codec import MAX_NODES, MAX_TEXT, MessageError, pack, unpack
from forerun.drafting.remote.messages import Begin, Failure, Message, Spans, Verdict
from forerun.drafting.remote.policy import RemotePolicy
from forerun.drafting.tree_policy import TreePolicy
from tests.drafting.remote.samples import BEGIN, GREEDY, MESSAGES, PROPOSAL, SAMPLED, SETUP, SPANS, VERDICT


def told(message: Message) -> tuple[int, int, bytes]:
    """What `unpack` is given of a message."""
    kind, payload = pack(message)
    return kind, message.request, payload


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_told(message: Message) -> None:
    assert unpack(*told(message)) == message


def test_every_kind_has_a_number_of_its_own() -> None:
    kinds = {pack(message)[0]: type(message) for message in MESSAGES}
    assert len(kinds) == len({type(message) for message in MESSAGES}) == 9


def test_a_failure_of_any_length_is_told_as_far_as_there_is_room() -> None:
    for text in ("x" * (MAX_TEXT + 1), "x" + "é" * MAX_TEXT, "xx" + "木" * MAX_TEXT):
        message = unpack(*told(Failure(text=text)))
        assert isinstance(message, Failure)
        assert len(message.text) >= MAX_TEXT // 4
        assert text.startswith(message.text)


def test_parameters_that_a_user_may_give_can_be_told() -> None:
    biases = {-1: 1.0, 0: -1e38, 2**32: 1.0}  # ids that no vocabulary has mean nothing
    params = replace(SAMPLED, top_k=2**31 - 1, logit_bias=biases)
    message = unpack(*told(replace(BEGIN, params=params)))
    assert isinstance(message, Begin)
    assert message.params.top_k == 2**31 - 1
    assert message.params.logit_bias == {0: -1e38}


Checked = TypeVar("Checked", SamplingParams, TreePolicy, RemotePolicy)


def spoilt(checked: Checked, **changes: Any) -> Checked:
    """Parameters that nobody could have built."""
    copy = replace(checked)
    for name, value in changes.items():
        object.__setattr__(copy, name, value)
    return copy


NAN, INFINITY = float("nan"), float("inf")
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
    "a begin without a prompt": replace(BEGIN, prompt_ids=()),
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
    kind, payload = pack(REFUSED[name])
    with pytest.raises(MessageError):
        unpack(kind, 3, payload)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_payload_of_another_length_is_refused_or_another_message(message: Message) -> None:
    kind, payload = pack(message)
    for other in (*(payload[:end] for end in range(len(payload))), payload + b"\0", payload + bytes(4)):
        try:
            read = unpack(kind, message.request, other)
        except MessageError:
            continue
        assert isinstance(read, Verdict | Spans | Failure), "only these say nothing about their length"
        assert read != message


@pytest.mark.parametrize("kind", [0, 10, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(MessageError):
        unpack(kind, 1, b"")


def test_a_text_that_is_none_is_refused() -> None:
    for payload in (b"\xff", b"x" * (MAX_TEXT + 1)):
        with pytest.raises(MessageError):
            unpack(9, 0, payload)
