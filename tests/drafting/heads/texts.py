"""Requests of any settings and grammars on tiny models: each token is a letter, and token 0 ends a text."""

from collections.abc import Sequence
from typing import cast

from forerun.core.config import SamplingParams
from forerun.core.grammar import Grammar
from forerun.decoding.decoder import Request, Round
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import decode
from forerun.decoding.prefill import prefill
from forerun.decoding.verifier import Verifier
from forerun.drafting.drafter import Drafter
from forerun.model.runner import Runner
from forerun.sampling.noise import KeyedNoise
from forerun.text.constraint import Constraint
from forerun.text.grammar_compiler import GrammarCompiler
from forerun.text.tokenizer import Tokenizer
from tests.tiny import drafters_of

STOP = 0


class Letters:
    """What a grammar needs of a tokenizer."""

    added_ids = (STOP,)

    def bytes_of(self, token_id: int) -> bytes:
        return b"<stop>" if token_id == STOP else chr(96 + token_id).encode()

    def encode_inside(self, text: str) -> list[int]:
        return [ord(letter) - 96 for letter in text]


def constraint_of(pattern: str, vocab_size: int) -> Constraint:
    """A text that the whole pattern matches."""
    return GrammarCompiler(cast(Tokenizer, Letters()), vocab_size, [STOP]).compile(Grammar.regex(pattern))


def write(
    target: Runner,
    drafter: Drafter | Drafters,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int,
    num_tokens: int,
    pattern: str | None = None,
) -> tuple[list[int], list[Round]]:
    """The tokens of an answer, under a grammar up to its end, and its rounds."""
    noise = None if params.is_greedy else KeyedNoise(seed, target.spec.vocab_size, device=target.device)
    constraint = None if pattern is None else constraint_of(pattern, target.spec.vocab_size)
    request = Request(prompt_ids=prompt_ids, params=params, noise=noise, constraint=constraint)
    drafters = drafters_of(drafter)
    drafters.start_text(request, target.drop_rows)
    for _ in prefill(target, request, drafters):
        pass
    side = Verifier(target, params, prompt_ids, noise, constraint=constraint)
    rounds = list[Round]()
    playing = decode(side, drafters, near_tie=0.0, num_tokens=num_tokens)
    tokens = list[int]()
    for played in playing:
        rounds.append(played)
        tokens += played.token_ids
        if pattern is not None and STOP in tokens:
            playing.close()
            return tokens[: tokens.index(STOP) + 1][:num_tokens], rounds
    return tokens[:num_tokens], rounds
