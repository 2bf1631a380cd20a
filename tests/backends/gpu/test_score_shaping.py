"""Biases, penalties and temperature by Triton's kernel, against `sampling.sample`: equal in every bit.

Legend: R rows, V vocabulary, C columns, N nodes.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.sampling.sample import LogitShaper, divided

pytest.importorskip("triton")

from forerun.backends.gpu.sampling.score_shaping import LEADER_BLOCK, RequestSettings, RowPaths, ScoreRows, shape_scores
from forerun.backends.gpu.tree.count_tokens import count_tokens
from forerun.backends.gpu.tree.device_tree import OUTCOME_HEADER, DeviceTree

VOCAB_SIZE = 1100  # Three blocks, the last one not full.
PARENTS = [-1, 0, 0, 1, 3, 3]
TREE_TOKENS = [5, 7, 9, 7, 3, 1099]
PROMPT = [1, 2, 3, 5]
WRITTEN = [5, 5, 7]
NAN = float("nan")
INF = float("inf")


def tree_of(tokens: list[int]) -> DeviceTree:
    tree = DeviceTree(verify_width=8, draft_width=4, num_children=2, min_mass=0.0, device="cpu")
    masks: list[int] = []
    for node, parent in enumerate(PARENTS):
        masks.append(1 << node | (masks[parent] if parent >= 0 else 0))
    tree.nodes.tokens[: len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
    tree.nodes.ancestors[: len(masks)] = torch.tensor(masks)
    return tree


def path_to(node: int) -> list[int]:
    """Tokens below the root, the node's own last."""
    return [] if node == 0 else [*path_to(PARENTS[node]), TREE_TOKENS[node]]


def shaped(
    scores_RV: Tensor, params: SamplingParams, *, nodes: list[int] | None, column_ids: Tensor | None = None
) -> ScoreRows:
    settings = RequestSettings.for_vocabulary(VOCAB_SIZE, "cpu")
    settings.set_request(params, PROMPT, WRITTEN)
    num_rows, num_columns = scores_RV.shape
    rows = ScoreRows.over(
        torch.cat((scores_RV, torch.ones(num_rows, 9)), 1), num_rows=num_rows, num_columns=num_columns
    )
    row_nodes = None if nodes is None else torch.tensor(nodes, dtype=torch.int32)
    tree = tree_of(TREE_TOKENS)
    paths = RowPaths(tree.nodes.tokens, tree.nodes.ancestors, row_nodes)
    shape_scores(rows, settings, paths, num_rows=num_rows, column_ids=column_ids, overlaps=False)
    assert rows.scores[:, num_columns:].eq(1).all(), "what lies behind the columns is not theirs"
    return rows


SETTINGS = [
    {}, {"temperature": 0.7}, {"repetition_penalty": 1.3, "temperature": 1.7}, {"frequency_penalty": 0.37},
    {"presence_penalty": -0.7}, {"logit_bias": {5: -INF, 1099: 3.3, 5000: 1.0}},
    {"repetition_penalty": 0.9, "frequency_penalty": -0.11, "presence_penalty": 0.3, "logit_bias": {7: 0.1},
     "temperature": 0.33},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("nodes", [None, [3, 0, -1, 5]])
def test_scores_have_the_bits_of_the_hosts_loop(settings: dict[str, Any], nodes: list[int] | None) -> None:
    params = SamplingParams(**settings)
    scores_RV = 3 * torch.randn(len(PARENTS if nodes is None else nodes), VOCAB_SIZE)
    scores_RV[0, 4] = NAN
    scores_RV[1, 1090] = INF
    rows = shaped(scores_RV, params, nodes=nodes)
    shaper = LogitShaper(params, VOCAB_SIZE, PROMPT)
    shaper.commit(WRITTEN)
    expected_RV = shaper.shape(scores_RV, [path_to(max(node, 0)) for node in nodes or range(len(PARENTS))])
    if not params.is_greedy:
        expected_RV = divided(expected_RV, params.temperature)
    torch.testing.assert_close(rows.scores[:, :VOCAB_SIZE], expected_RV, rtol=0, atol=0, equal_nan=True)
    padded_RV = torch.nn.functional.pad(expected_RV, (0, -VOCAB_SIZE % LEADER_BLOCK), value=-INF)
    best_RT = padded_RV.view(len(rows.scores), -1, LEADER_BLOCK).amax(-1)
    torch.testing.assert_close(rows.tile_bests, best_RT, rtol=0, atol=0, equal_nan=True)


def test_columns_of_a_draft_are_those_of_their_tokens() -> None:
    params = SamplingParams(**SETTINGS[-1])
    column_ids = torch.tensor([5, 7, 9, *range(10, 1100, 7), 1099])
    scores_RV = 3 * torch.randn(len(PARENTS), VOCAB_SIZE)
    whole = shaped(scores_RV, params, nodes=None).scores
    part = shaped(scores_RV[:, column_ids], params, nodes=None, column_ids=column_ids.int()).scores
    assert part[:, : len(column_ids)].equal(whole[:, column_ids])


def test_what_a_round_wrote_is_counted() -> None:
    settings = RequestSettings.for_vocabulary(VOCAB_SIZE, "cpu")
    tree = tree_of(TREE_TOKENS)
    settings.set_request(SamplingParams(presence_penalty=1.0), PROMPT, WRITTEN)
    tree.outcome[:] = 77
    tree.outcome[0] = 3
    tree.outcome[OUTCOME_HEADER:][:3] = torch.tensor([9, 5, 9])
    count_tokens(tree, settings, overlaps=False)
    assert settings.written.nonzero()[:, 0].tolist() == [5, 7, 9]
    assert settings.written[[5, 7, 9]].tolist() == [3, 1, 2]
    assert settings.seen.nonzero()[:, 0].tolist() == [1, 2, 3, 5, 7, 9]


def test_a_request_leaves_nothing_to_the_next_one() -> None:
    settings = RequestSettings.for_vocabulary(VOCAB_SIZE, "cpu")
    settings.set_request(SamplingParams(**SETTINGS[-1]), PROMPT, WRITTEN)
    settings.set_request(SamplingParams(), PROMPT, WRITTEN)
    for ours, fresh in zip(settings, RequestSettings.for_vocabulary(VOCAB_SIZE, "cpu"), strict=True):
        assert ours.equal(fresh)
