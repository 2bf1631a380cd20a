"""Encodes messages as bytes and decodes them. All numbers are little-endian."""

import struct
from collections.abc import Callable
from dataclasses import astuple, fields
from itertools import pairwise
from operator import le, lt
from typing import Any, Final

from forerun.core.config import SamplingParams
from forerun.core.errors import ConfigError
from forerun.drafting.remote.messages import (
    MAX_NODES,
    MAX_VOCABULARY,
    OWNER_BYTES,
    Beat,
    Begin,
    Failure,
    Hello,
    Message,
    Proposal,
    Setup,
    Spans,
    Stop,
    Verdict,
)
from forerun.drafting.remote.policy import RemotePolicy
from forerun.drafting.tree_policy import TreePolicy

MAX_TEXT: Final = 1 << 15


class MessageError(ValueError):
    """An invalid payload."""


_HELLO = struct.Struct("<IIII")
_SETUP = struct.Struct("<IHHHdd??????Hd?")  # widths, then the fields of both policies in their order
_BEGIN = struct.Struct(f"<6dI?Q{OWNER_BYTES}sII")  # parameters named below, top_k, seed, owner; biases, prompt ids
_PARAMS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_BIAS = struct.Struct("<Id")
_VERDICT = struct.Struct("<Id")
_PROPOSAL = struct.Struct("<IIfH")
_SPAN = struct.Struct("<dd")


def pack(message: Message) -> tuple[int, bytes]:
    """The message's kind and payload."""
    match message:
        case Hello():
            num_bytes = len(message.vocabulary)
            head = _HELLO.pack(message.pid, message.vocab_size, message.max_length, num_bytes)
            return 1, head + message.vocabulary + message.known
        case Setup():
            widths = message.target_vocab_size, message.verify_width, message.draft_width
            return 2, _SETUP.pack(*widths, *astuple(message.tree), *astuple(message.policy))
        case Begin():
            return 3, _pack_begin(message)
        case Verdict():
            return 4, _VERDICT.pack(message.base_len, message.step_s) + _pack_ids(message.token_ids)
        case Stop():
            return 5, b""
        case Proposal():
            num_nodes = len(message.token_ids)
            head = _PROPOSAL.pack(message.base_len, message.serial, message.repair_s, num_nodes)
            return 6, head + struct.pack(
                f"<{num_nodes}I{num_nodes}H{num_nodes}f", *message.token_ids, *message.parents, *message.log_probs
            )
        case Beat():
            return 7, b""
        case Spans():
            return 8, b"".join(_SPAN.pack(*span) for span in message.times)
        case Failure():
            text = message.text.encode("utf-8", errors="replace")[:MAX_TEXT]
            return 9, text.decode("utf-8", errors="ignore").encode("utf-8")  # the cut may have split a character


def unpack(kind: int, request: int, payload: bytes) -> Message:
    """The inverse of `pack`.

    Raises:
        MessageError: unknown kind, or a payload invalid for it.
    """
    read = _READERS.get(kind)
    if read is None:
        raise MessageError(f"kind {kind}")
    try:
        return read(request, payload)
    except (struct.error, ConfigError, UnicodeDecodeError) as error:
        raise MessageError(str(error)) from error


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise MessageError(what)


def _pack_ids(token_ids: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _unpack_ids(payload: bytes, place: int) -> tuple[int, ...]:
    _need(place <= len(payload) and (len(payload) - place) % 4 == 0, f"{len(payload)} bytes")
    return struct.unpack_from(f"<{(len(payload) - place) // 4}I", payload, place)


def _pack_begin(message: Begin) -> bytes:
    params = message.params
    values = [getattr(params, name) for name in _PARAMS]
    seed = message.seed is not None, message.seed or 0
    biases = [item for item in params.logit_bias.items() if 0 <= item[0] < 2**32]
    counts = len(biases), len(message.prompt_ids)
    head = _BEGIN.pack(*values, min(params.top_k, 2**32 - 1), *seed, message.owner, *counts)
    return head + b"".join(_BIAS.pack(*item) for item in biases) + _pack_ids(message.prompt_ids)


def _read_hello(request: int, payload: bytes) -> Hello:
    pid, vocab_size, max_length, num_bytes = _HELLO.unpack_from(payload)
    _need(num_bytes % 4 == 0 and num_bytes <= MAX_VOCABULARY, f"a vocabulary of {num_bytes} bytes")
    end = _HELLO.size + num_bytes
    _need(len(payload) in (end, end + (vocab_size + 7) // 8), f"{len(payload)} bytes")
    vocabulary, known = payload[_HELLO.size : end], payload[end:]
    return Hello(
        request=request, pid=pid, vocab_size=vocab_size, max_length=max_length, vocabulary=vocabulary, known=known
    )


def _read_setup(request: int, payload: bytes) -> Setup:
    target_vocab_size, verify_width, draft_width, *values = _SETUP.unpack(payload)
    _need(min(target_vocab_size, verify_width, draft_width) >= 1, "a width of 0")
    _need(max(verify_width, draft_width) <= MAX_NODES, f"a width above {MAX_NODES}")
    num_tree = len(fields(TreePolicy))
    return Setup(
        request=request,
        target_vocab_size=target_vocab_size,
        verify_width=verify_width,
        draft_width=draft_width,
        tree=TreePolicy(**_named(TreePolicy, values[:num_tree])),
        policy=RemotePolicy(**_named(RemotePolicy, values[num_tree:])),
    )


def _named(kind: type[TreePolicy | RemotePolicy], values: list[Any]) -> dict[str, Any]:
    return {field.name: value for field, value in zip(fields(kind), values, strict=True)}


def _read_begin(request: int, payload: bytes) -> Begin:
    *values, top_k, has_seed, seed, owner, num_biases, num_prompt = _BEGIN.unpack_from(payload)
    place = _BEGIN.size + num_biases * _BIAS.size
    _need(num_prompt >= 1 and len(payload) == place + 4 * num_prompt, f"{len(payload)} bytes")
    _need(seed < 2**63, f"seed {seed}")
    biases = dict(_BIAS.iter_unpack(payload[_BEGIN.size : place]))
    params = SamplingParams(**dict(zip(_PARAMS, values, strict=True)), top_k=top_k, logit_bias=biases)
    _need(has_seed != params.is_greedy, f"temperature {params.temperature}, seed {has_seed}")
    prompt_ids = _unpack_ids(payload, place)
    seed = seed if has_seed else None
    return Begin(request=request, prompt_ids=prompt_ids, params=params, seed=seed, owner=owner)


def _read_verdict(request: int, payload: bytes) -> Verdict:
    base_len, step_s = _VERDICT.unpack_from(payload)
    token_ids = _unpack_ids(payload, _VERDICT.size)
    _need(base_len >= 1 and len(token_ids) >= 1, f"{len(token_ids)} tokens after {base_len}")
    _need(0.0 <= step_s < 1e6, f"a step of {step_s} s")
    return Verdict(request=request, base_len=base_len, token_ids=token_ids, step_s=step_s)


def _read_proposal(request: int, payload: bytes) -> Proposal:
    base_len, serial, repair_s, num_nodes = _PROPOSAL.unpack_from(payload)
    _need(0.0 <= repair_s < 1e6, f"a repair of {repair_s} s")
    _need(base_len >= 1 and 1 <= num_nodes <= MAX_NODES, f"{num_nodes} nodes after {base_len}")
    _need(len(payload) == _PROPOSAL.size + 10 * num_nodes, f"{len(payload)} bytes for {num_nodes} nodes")
    numbers = struct.unpack_from(f"<{num_nodes}I{num_nodes}H{num_nodes}f", payload, _PROPOSAL.size)
    token_ids, parents, log_probs = numbers[:num_nodes], numbers[num_nodes : 2 * num_nodes], numbers[2 * num_nodes :]
    below = parents[1:]
    _need(all(map(lt, below, range(1, num_nodes))), "a parent after its child")
    _need(log_probs[0] <= 0.0 and min(log_probs) > -1e6, "a log-probability out of range")
    # Also false for NaN. It follows that no node is likelier than the root.
    _need(all(map(le, log_probs[1:], map(log_probs.__getitem__, below))), "a child likelier than its parent")
    return Proposal(
        request=request, base_len=base_len, serial=serial, repair_s=repair_s, token_ids=token_ids, parents=parents,
        log_probs=log_probs,
    )  # fmt: skip


def _read_spans(request: int, payload: bytes) -> Spans:
    times = tuple(_SPAN.iter_unpack(payload))
    flat = [moment for span in times for moment in span]
    _need(all(0.0 <= moment < 1e12 for moment in flat), "a moment out of range")
    _need(all(left <= right for left, right in pairwise(flat)), "moments out of order")
    return Spans(request=request, times=times)


def _read_empty(kind: type[Stop] | type[Beat]) -> Callable[[int, bytes], Message]:
    def read(request: int, payload: bytes) -> Message:
        _need(not payload, f"{len(payload)} bytes")
        return kind(request=request)

    return read


def _read_failure(request: int, payload: bytes) -> Failure:
    _need(len(payload) <= MAX_TEXT, f"{len(payload)} bytes")
    return Failure(request=request, text=payload.decode("utf-8"))


_READERS: Final[dict[int, Callable[[int, bytes], Message]]] = {
    1: _read_hello,
    2: _read_setup,
    3: _read_begin,
    4: _read_verdict,
    5: _read_empty(Stop),
    6: _read_proposal,
    7: _read_empty(Beat),
    8: _read_spans,
    9: _read_failure,
}
