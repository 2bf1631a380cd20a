"""Compiles every kernel of a whole round for an architecture, as the round launches them; prints how often each.

python tests/backends/gpu/compile_round.py FORMAT ARCHITECTURE, without TRITON_INTERPRET.
"""

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.rounds import DeviceRounds
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.model_spec import WeightFormat
from forerun.drafting.drafter import RoundPlan
from forerun.drafting.tree_policy import BEST_TREE
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from tests.backends.gpu.compiling import compiling
from tests.tiny import random_weights, tiny_spec

WIDE_ROWS = 40
SAMPLED = SamplingParams(temperature=0.8)
KINDS = (SamplingParams(), SAMPLED, SamplingParams(presence_penalty=1.0), replace(SAMPLED, top_p=0.9))


def runner_of(weight_format: WeightFormat) -> Runner:
    spec = tiny_spec(
        random.Random(1), num_layers=1, hidden_size=256, num_heads=8, num_kv_heads=2, head_dim=64,
        intermediate_size=512, vocab_size=1024, max_positions=1024,
    )  # fmt: skip
    weights = random_weights(spec, torch.Generator().manual_seed(1), dtype=torch.bfloat16)
    return Runner(
        spec, LoadedWeights(weights, weight_format), backend=TRITON, capacity=1024, dtype=torch.bfloat16, device="cpu"
    )


@torch.inference_mode()
def compile_round(weight_format: WeightFormat, architecture: int) -> Counter[str]:
    target, draft = runner_of(weight_format), runner_of(weight_format)
    tree = DraftModel(verify_width=16, draft_width=8, depth=2, adaptive=False)
    ids = torch.arange(1024, dtype=torch.int32)
    half = VocabularyMap(target_ids=ids[::2], draft_ids=ids // 2)
    with compiling(architecture) as launches:
        for vocabulary in (None, half):
            plan = RoundPlan(draft=draft, shape=tree, policy=BEST_TREE, vocabulary=vocabulary)
            rounds = DeviceRounds(target, plan)
            for params in KINDS:
                rounds.begin(params, 3)
                rounds.set_text([1] * 400)
                rounds.launch(2, 400)
        wide = list(range(WIDE_ROWS))
        target.forward(ForwardInput(token_ids=wide, positions=wide, first_slot=0, prefix_len=0))
    assert all(launch.overlaps == (architecture >= 90) for launch in launches)
    return Counter(launch.kernel for launch in launches)


if __name__ == "__main__":
    FORMAT, ARCHITECTURE = sys.argv[1], int(sys.argv[2])
    with patch("forerun.backends.gpu.executor.can_overlap", lambda _: ARCHITECTURE >= 90):
        launched = compile_round(FORMAT, ARCHITECTURE)  # type: ignore[arg-type]
    sys.stdout.write(json.dumps(launched))
