"""Messages of every kind."""

import random
from typing import Final

from msgspec.structs import replace

from forerun.core.config import SamplingParams
from forerun.drafting.policies import RemotePolicy, TreePolicy
from forerun.drafting.remote.messages import (
    MAX_NODES,
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

GREEDY: Final = SamplingParams()
SAMPLED: Final = SamplingParams(
    temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1, presence_penalty=-0.5,
    frequency_penalty=0.25, logit_bias={3: -1.5, 70_000: float("-inf")},
)  # fmt: skip
HELLO: Final = Hello(pid=4711, vocab_size=151_936, max_length=32_768, vocabulary=bytes(range(32)))
SETUP: Final = Setup(
    target_vocab_size=151_936, verify_width=8, draft_width=4, tree=TreePolicy(num_children=3, looks_up=False),
    policy=RemotePolicy(max_repairs=1, max_lateness=1.0, calibrates=False),
)  # fmt: skip
BEGIN: Final = Begin(request=3, prompt_ids=(1, 2, 3), params=SAMPLED, seed=2**63 - 1)
VERDICT: Final = Verdict(request=3, base_len=3, token_ids=(9, 2**32 - 1), step_s=0.0125)
PROPOSAL: Final = Proposal(
    request=3, base_len=5, serial=2, repair_s=0.0, token_ids=(7, 1, 2, 1), parents=(0, 0, 0, 2),
    log_probs=(0.0, -0.25, -1.5, -1.5),
)  # fmt: skip
SPANS: Final = Spans(request=3, times=((1.0, 1.5), (1.5, 2.25)))
MESSAGES: Final[list[Message]] = [
    HELLO,
    SETUP,
    replace(SETUP, verify_width=MAX_NODES, policy=RemotePolicy(max_lateness=1e6, max_repairs=16, is_traced=True)),
    BEGIN,
    replace(BEGIN, params=GREEDY, seed=None),
    replace(BEGIN, seed=0),
    replace(BEGIN, owner=bytes(range(16))),
    VERDICT,
    Stop(request=3),
    PROPOSAL,
    replace(PROPOSAL, token_ids=(7,), parents=(0,), log_probs=(0.0,)),
    Beat(request=2**32 - 1),
    SPANS,
    Spans(request=3, times=()),
    Failure(text="no such file: ä 木"),
]


def random_proposal(rng: random.Random) -> Proposal:
    num_nodes = rng.choice((1, 2, 40, MAX_NODES))
    return Proposal(
        request=rng.randrange(2**32),
        base_len=rng.randint(1, 2**32 - 1),
        serial=rng.randrange(2**32),
        repair_s=rng.randrange(64) / 64,
        token_ids=tuple(rng.randrange(2**32) for _ in range(num_nodes)),
        parents=(0, *(rng.randrange(node) for node in range(1, num_nodes))),
        log_probs=tuple(-node / 64 for node in range(num_nodes)),
    )
