"""Qwen3.5's own draft head: found in its target's files, its logits, and the same text as without it."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from forerun import Automatic, DraftHead, Engine, EngineConfig, NoDrafter, SamplingParams
from forerun.checkpoints.open import open_source
from forerun.core.sublayers import NOTHING
from forerun.drafting.heads.eagle_network import EagleExecutor, EagleRows
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.heads.layer import HeadWeights, embedding, plain_linear
from forerun.drafting.heads.mtp import MtpSpec
from forerun.drafting.heads.mtp_network import MtpHead
from forerun.drafting.heads.stored import find_inner_head
from forerun.speculation.tree import TokenTree
from tests.drafting.heads.runners import runner_of
from tests.marks import rest_slow
from tests.text.tiny_tokenizers import write_byte_level

pytest.importorskip("transformers")
from tests.golden.random_families import FAMILIES
from tests.golden.random_gguf import write_gguf

Tensors = dict[str, Tensor]


def write_target(folder: Path, seed: int, dtype: torch.dtype, **changes: object) -> dict[str, Any]:
    """A random Qwen3.5 with a draft head in its file, as published: norms lack their 1, queries and gates alternate."""
    FAMILIES["qwen3_5"].save(seed, folder, attention_bias=False, **changes)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    hidden = config["hidden_size"]
    inner = config["intermediate_size"]
    size = config["head_dim"]
    num_heads = config["num_attention_heads"]
    num_kv = config["num_key_value_heads"]
    layer = {
        "self_attn.q_proj": (2 * num_heads * size, hidden), "self_attn.k_proj": (num_kv * size, hidden),
        "self_attn.v_proj": (num_kv * size, hidden), "self_attn.o_proj": (hidden, num_heads * size),
        "self_attn.q_norm": (size,), "self_attn.k_norm": (size,), "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner), "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    outer = {
        "fc": (hidden, 2 * hidden),
        **dict.fromkeys(("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), (hidden,)),
    }
    shapes = outer | {f"layers.0.{name}": shape for name, shape in layer.items()}
    own = {
        f"mtp.{name}.weight": (0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
        for name, shape in shapes.items()
    }
    path = folder / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()} | own, path)
    return config


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * (1.0 + weight)


def turned(x_D: Tensor, place: int, rotated: int, theta: float) -> Tensor:
    angles = (place * theta ** -(torch.arange(0, rotated, 2).float() / rotated)).double()
    first = x_D[: rotated // 2]
    second = x_D[rotated // 2 : rotated]
    rest = x_D[rotated:]
    cos = angles.cos()
    sin = angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest))


class Twin:
    """The head as it is published, a row at a time without a cache, in float64."""

    def __init__(self, tensors: Tensors, config: dict[str, Any]) -> None:
        self.own = {name.removeprefix("mtp.").removesuffix(".weight"): tensor for name, tensor in tensors.items()}
        self.eps = config["rms_norm_eps"]
        self.size = config["head_dim"]
        self.num_heads = config["num_attention_heads"]
        self.group = self.num_heads // config["num_key_value_heads"]
        rope = config["rope_parameters"]
        self.rotated = int(self.size * rope["partial_rotary_factor"])
        self.theta = rope["rope_theta"]
        self.rows: list[tuple[list[Tensor], list[Tensor]]] = []

    def norm(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.own[name], self.eps)

    def row(self, embedded: Tensor, state: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """The state behind the last norm; the row's keys and values join those before it."""
        layer = "layers.0."
        x = self.own["fc"] @ torch.cat(
            (self.norm("pre_fc_norm_embedding", embedded), self.norm("pre_fc_norm_hidden", state))
        )
        h = self.norm(f"{layer}input_layernorm", x)
        heads = (self.own[f"{layer}self_attn.q_proj"] @ h).view(self.num_heads, 2 * self.size)

        def turn(kind: str, rows: Tensor) -> list[Tensor]:
            normed = [self.norm(f"{layer}self_attn.{kind}_norm", row) for row in rows]
            return [turned(row, place, self.rotated, self.theta) for row in normed]

        queries = turn("q", heads[:, : self.size])
        keys = turn("k", (self.own[f"{layer}self_attn.k_proj"] @ h).view(-1, self.size))
        values = list((self.own[f"{layer}self_attn.v_proj"] @ h).view(-1, self.size))
        self.rows.append((keys, values))
        mixed = []
        for head, query in enumerate(queries):
            own = [(keys[head // self.group], values[head // self.group]) for keys, values in self.rows]
            shares = torch.stack([query @ key for key, _ in own]).div(self.size**0.5).softmax(0)
            mixed.append((shares @ torch.stack([value for _, value in own])) * torch.sigmoid(heads[head, self.size :]))
        x = x + self.own[f"{layer}self_attn.o_proj"] @ torch.cat(mixed)
        h = self.norm(f"{layer}post_attention_layernorm", x)
        gated = functional.silu(self.own[f"{layer}mlp.gate_proj"] @ h) * (self.own[f"{layer}mlp.up_proj"] @ h)
        return self.norm("norm", x + self.own[f"{layer}mlp.down_proj"] @ gated), x


@pytest.mark.parametrize("seed", rest_slow(range(6), 2))
def test_a_trees_logits_are_those_of_each_path_read_alone(seed: int, tmp_path: Path) -> None:
    config = write_target(tmp_path, seed, torch.float64)
    stored = find_inner_head(open_source(str(tmp_path)))
    assert stored is not None
    assert isinstance(stored.spec, MtpSpec)
    tensors = load_file(tmp_path / "model.safetensors")
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}
    table = tensors["model.embed_tokens.weight"]
    output = tensors.get("lm_head.weight", table)
    final = tensors["model.norm.weight"]
    rng = random.Random(seed)
    text = [rng.randrange(len(table)) for _ in range(rng.randint(3, 12))]
    features = torch.randn(
        40, 1, config["hidden_size"], generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    weights = HeadWeights(stored.weights(dtype=torch.float64, device="cpu"))
    head = MtpHead(stored.spec, weights, embedding(table), plain_linear(output), 1.0 + final)
    runner = runner_of(stored.spec.body, lambda cache: EagleExecutor(head, cache))
    waiting = TextFeatures([0], torch.float64)
    rows = EagleRows(runner, runner.executor, waiting, 60)  # type: ignore[arg-type]
    rows.start_text(text, "")
    waiting.read(0, features[: len(text) - 1])
    tree = TokenTree(text[-1])
    for token, parent in ((1, 0), (2, 0), (3, 1), (4, 3), (5, 1)):
        tree.add(parent, token, -1.0)
    found = [
        rows.expand(tree, batch, [tree.token_ids[node] for node in batch], text, NOTHING)
        for batch in ([0], [1, 2], [3, 5], [4])
    ]
    for node, logits in zip((0, 1, 2, 3, 5, 4), torch.cat(found), strict=True):
        twin = Twin(own, config)
        state = torch.empty(0)
        for place, token in enumerate([*text, *tree.path_tokens(node)][1:], 1):
            before = norm(features[place - 1, 0], final, config["rms_norm_eps"]) if place < len(text) else state
            state, _ = twin.row(table[token], before, place)
        assert float((logits - output @ state).abs().max()) < 1e-6, "angles have float32 precision"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_gguf_file_holds_the_same_head(seed: int, tmp_path: Path) -> None:
    config = write_target(tmp_path, seed, torch.float32)
    folder = open_source(str(tmp_path))
    file = open_source(str(write_gguf(tmp_path, tmp_path / "model.gguf", folder.spec(), config)))
    own, other = (find_inner_head(source) for source in (folder, file))
    assert own is not None
    assert other is not None
    expected, found = (head.weights(dtype=torch.float32, device="cpu") for head in (own, other))
    assert expected.keys() == found.keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
    assert own.num_parameters == other.num_parameters == sum(tensor.numel() for tensor in found.values())
    eps = own.spec.body.norm_eps  # that in the file has float32 precision
    assert replace(other.spec.body, norm_eps=eps) == own.spec.body


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("mtp")
    write_target(folder, 3, torch.float32, vocab_size=303)
    write_byte_level(folder)
    return str(folder)


def test_the_text_is_that_without_drafting(target: str) -> None:
    prompts = ([5, 6, 7, 8, 5, 6], list(range(40, 90)))
    sampled = SamplingParams(temperature=1.0, seed=7, max_new_tokens=24, ignore_eos=True)
    greedy = SamplingParams(max_new_tokens=24, ignore_eos=True)
    texts = []
    for drafter in (NoDrafter(), DraftHead(model=target, adaptive=False, verify_width=8, draft_width=4, depth=3)):
        with Engine(EngineConfig(target=target, drafter=drafter, dtype="float32", num_threads=1)) as engine:
            results = [engine.generate(prompt, params) for params in (greedy, sampled) for prompt in prompts]
        texts.append([result.token_ids for result in results])
    assert texts[0] == texts[1]
    assert sum(result.stats.num_drafted for result in results) > 100
    assert sum(result.stats.num_accepted for result in results) > 0


def test_auto_finds_the_head_and_inspect_names_it(target: str, tmp_path: Path) -> None:
    with Engine(EngineConfig(target=target, drafter=Automatic(learnt=None), dtype="float32", num_threads=1)) as engine:
        assert "draft_head" in engine.drafting.held
        assert engine.generate([5, 6, 7], SamplingParams(max_new_tokens=8, ignore_eos=True)).token_ids
    FAMILIES["qwen3_5"].save(3, tmp_path)
    assert find_inner_head(open_source(str(tmp_path))) is None
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"mtp.fc.weight": torch.ones(4, 8)}, tmp_path / "model.safetensors")
    assert find_inner_head(open_source(str(tmp_path))) is None, "a part of a head"
