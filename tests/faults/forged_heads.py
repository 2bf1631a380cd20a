"""Draft heads by strangers: a good head of each kind with something in its config or tensors changed, and half of them
with the other tensors made to fit the change."""

import json
import random
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun import DraftHead, EngineConfig, NoDrafter, SamplingParams
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError, ForerunError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.core.pace import Pace
from forerun.core.threads import inference
from forerun.decoding.decoder import Request, Round, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.kind import HeadSpec
from forerun.drafting.heads.stored import canonical, find_head, read_head
from forerun.drafting.policies import BEST_TREE
from forerun.engine.drafters import load_head
from forerun.engine.model_loading import Checkpoint
from forerun.sampling.noise import KeyedNoise
from tests.checkpoints.folders import random_tensors, write_single
from tests.drafting.heads.published import body_keys, dflash_config, flat_config, nested_config, with_map
from tests.drafting.heads.random_heads import dflash_tensors, eagle_tensors, random_body, random_dflash, random_eagle
from tests.drafting.heads.test_gguf import gguf_name, paired, write
from tests.faults.hostile_checkpoints import odd

KINDS: Final = ("eagle3", "dflash", "dflash2", "dspark", "assistant", "eagle3 in GGUF", "dflash in GGUF")
CAPACITY = 96
NUM_TOKENS = 7
MOST_ELEMENTS = 300_000
SIZES: Final = {"num_hidden_layers": 6, "vocab_size": 60, "max_position_embeddings": 64}
PROMPT: Final = (3, 1, 4, 1, 5, 59)
DTYPES: Final = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.int8, torch.int16, torch.float8_e4m3fn,
)  # fmt: skip
WRITERS_ERRORS: Final = (
    ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError, StopIteration, AttributeError,
    ZeroDivisionError, struct.error,
)  # fmt: skip
Parts = tuple[dict[str, Any], dict[str, Tensor]]


class ForgedHeads:
    """Writes one forged head after another, and lets it draft for a tiny target of its kind.

    Args:
        folder: for the targets and heads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._targets = dict[str, Target]()

    def outcome(self, kind: str, number: int, num_changes: int = 3) -> str:
        """What became of the head of this seed: refused, the plain text, or what went wrong."""
        rng = random.Random(f"{kind} {number}")
        target = self._target("gemma4" if kind == "assistant" else "llama")
        path = self._folder / "head"
        path.mkdir(exist_ok=True)
        for file in path.iterdir():
            file.unlink()
        path = self._write(kind, rng, target.spec, path, num_changes)
        try:
            drafter = target.drafter(path, is_adaptive=rng.random() < 0.3)
        except ForerunError as error:
            return "refused" if str(error).strip() and "\n" not in str(error) else f"refused by {error!r}"
        params = SamplingParams(temperature=rng.choice([0.0, 1.0]))
        text = target.text(drafter, params, number)
        return "plain text" if text == target.text(Drafters(), params, number) else "another text"

    def _target(self, family: str) -> "Target":
        if family not in self._targets:
            self._targets[family] = Target(self._folder / family, family)
        return self._targets[family]

    def _write(self, kind: str, rng: random.Random, target: ModelSpec, path: Path, num_changes: int) -> Path:
        """Write the forged head; one that the writers of such files refuse is drawn again.

        Args:
            num_changes: at most so many; 0 for a good head.
        """
        while True:
            config, tensors = self._good(kind, rng, target)
            with suppress(*WRITERS_ERRORS):
                for _ in range(rng.randint(1, num_changes) if num_changes else 0):
                    self._change(rng, config, tensors)
                if rng.random() < 0.5:
                    with suppress(*WRITERS_ERRORS, CheckpointError):  # the config is beyond repair
                        self._make_fit(kind, config, tensors, path)
                return self._save(kind, config, tensors, path)

    def _good(self, kind: str, rng: random.Random, target: ModelSpec) -> Parts:
        """A random head of this kind as its trainer writes it."""
        seed = rng.randrange(1000)
        is_alone = rng.random() < 0.7
        size = {} if is_alone else {"hidden_size": target.hidden_size}
        if kind == "assistant":
            made = self._target("gemma4").assistants[rng.randrange(2)]
            return json.loads((made / "config.json").read_text()), load_file(made / "model.safetensors")
        if kind.startswith("eagle3"):
            one_layer = {"num_layers": 1, "qkv_bias": False, "qk_norm": False} if "GGUF" in kind else {}
            spec = random_eagle(rng, target, body=random_body(rng, **size, **one_layer))
            if "GGUF" in kind:
                spec = replace(spec, norms_each=False, norms_all=True, norms_logits=True, norms_state=False)
            ids = torch.tensor(sorted(rng.sample(range(target.vocab_size), spec.body.vocab_size)))
            if not is_alone:
                spec = replace(spec, body=replace(spec.body, vocab_size=target.vocab_size))
                ids = torch.arange(60)
            tensors = eagle_tensors(spec, target, seed, is_alone=is_alone)
            if "GGUF" in kind:
                return {"spec": spec, **gguf_keys(spec)}, {**tensors, "d2t": ids}
            config = rng.choice([flat_config, nested_config])(spec, target)
            named = {name: tensor.float() for name, tensor in tensors.items()}
            return config, with_map(named, ids, target.vocab_size)
        options: dict[str, Any] = {"conv_kernel": 0, "conv_group": 0, "pair_rank": 0, "num_pairs": 0, "markov_rank": 0}
        if kind == "dflash2" or ("GGUF" in kind and rng.random() < 0.5):
            options |= {"conv_kernel": 2, "conv_group": 4, "pair_rank": 4, "num_pairs": 3}
        if kind == "dspark":
            options |= {"markov_rank": 4, "has_markov_gate": rng.random() < 0.5}
        body = random_body(rng, vocab_size=target.vocab_size, **size)
        options |= {
            "windows": tuple(rng.choice([None, 8]) for _ in range(body.num_layers)),
            "is_causal": (rng.random() < 0.3,) * body.num_layers,
        }
        block = random_dflash(rng, target, body=body, **options)
        tensors = {name: one.float() for name, one in dflash_tensors(block, target, seed, is_alone=is_alone).items()}
        if "GGUF" in kind:
            return {"spec": block, **gguf_keys(block)}, tensors
        config = dflash_config(block, target)
        if rng.random() < 0.3:
            ids = [layer + 1 for layer in block.layer_ids]
            config = {
                "speculators_model_type": kind, "transformer_layer_config": body_keys(block.body, target.vocab_size),
                "block_size": block.block_size, "mask_token_id": block.mask_token_id, "markov_rank": 4,
                "aux_hidden_state_layer_ids": ids, "target_hidden_size": block.target_hidden_size,
                "conv_kernel_size": 2, "conv_group_size": 4, "selector_rank": 4, "selector_top_k": 3,
            }  # fmt: skip
        return config, tensors

    def _change(self, rng: random.Random, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        if rng.random() < 0.5:
            change_config(rng, config)
        else:
            change_tensor(rng, tensors)

    def _make_fit(self, kind: str, config: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> None:
        """Give every tensor the shape that the config asks of it."""
        if "GGUF" in kind:
            spec: HeadSpec = fitting_spec(config)
        else:
            shapes = {canonical(name): tuple(tensor.shape) for name, tensor in tensors.items()}
            _, spec = read_head(JsonFile(path=path, values=json.loads(json.dumps(config))), shapes)
        names = {canonical(name): name for name in tensors}
        shapes = {canonical(name): tuple(tensor.shape) for name, tensor in tensors.items()}
        allowed = {name: shape for name, shape in spec.allowed_shapes(shapes) if name in names}
        wanted = {**dict(spec.needed_shapes()), **allowed}
        for name, shape in wanted.items():
            if prod(shape) <= MOST_ELEMENTS and shapes.get(name) != shape:
                before = tensors.get(names.get(name, name), torch.zeros(1))
                if name in ("d2t", "masked_embedding.token_ordering"):
                    tensors[names.get(name, name)] = torch.arange(shape[0]) * (name != "d2t")
                else:
                    tensors[names.get(name, name)] = torch.randn(shape).to(before.dtype) * 0.3

    def _save(self, kind: str, config: dict[str, Any], tensors: dict[str, Tensor], path: Path) -> Path:
        if "GGUF" not in kind:
            config_text = json.dumps(config)
            save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()},
                      path / "model.safetensors")  # fmt: skip
            (path / "config.json").write_bytes(config_text.encode("utf-8", "surrogatepass"))
            return path
        spec = config["spec"]
        keys = {key: value for key, value in config.items() if key != "spec"}
        named = {
            gguf_name(name): paired(tensor, spec.body.head_dim)
            if kind.startswith("eagle3") and ("q_proj" in name or "k_proj" in name)
            else tensor
            for name, tensor in tensors.items()
        }
        return write(path / "head.gguf", kind.partition(" ")[0], fitting_spec(config).body, keys, named)


def gguf_keys(spec: HeadSpec) -> dict[str, Any]:
    """What llama.cpp writes about a head beside its sizes."""
    if not isinstance(spec, DFlashSpec):
        return {"target_layers": list(spec.layer_ids), "target_hidden_size": spec.target_hidden_size}  # type: ignore[union-attr,arg-type]
    keys: dict[str, Any] = {
        "block_size": spec.block_size, "target_layers": [layer + 1 for layer in spec.layer_ids],
        "tokenizer.ggml.mask_token_id": spec.mask_token_id,
    }  # fmt: skip
    if spec.pair_rank:
        keys |= {"selector_rank": spec.pair_rank, "selector_top_k": spec.num_pairs}
        keys |= {"conv_kernel_size": spec.conv_kernel, "conv_group_size": spec.conv_group}
    return keys


BODY_FIELDS: Final = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
DFLASH_FIELDS: Final = {
    "selector_rank": "pair_rank", "selector_top_k": "num_pairs", "conv_kernel_size": "conv_kernel",
    "conv_group_size": "conv_group", "block_size": "block_size", "tokenizer.ggml.mask_token_id": "mask_token_id",
}  # fmt: skip


def fitting_spec(config: Mapping[str, Any]) -> Any:
    """The spec that a file of these keys describes, as far as the tensors' shapes depend on it."""
    spec = config["spec"]
    if isinstance(spec, DFlashSpec):
        changes = {field: config[key] for key, field in DFLASH_FIELDS.items() if isinstance(config.get(key), int)}
        spec = replace(spec, **changes)
    return spec


def places(form: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a config, as its holder and the key or index there."""
    for key, value in list(form.items() if isinstance(form, dict) else enumerate(form)):
        if isinstance(value, (dict, list)):
            yield from places(value)
        yield form, key


def change_config(rng: random.Random, config: dict[str, Any]) -> None:
    """Change or drop a value anywhere; of a GGUF file's sizes too."""
    if "spec" in config and rng.random() < 0.4:
        body = config["spec"].body
        name = rng.choice(BODY_FIELDS)
        value = max(1, getattr(body, name) + rng.choice([-2, -1, 1, 2, 7, 100]))
        config["spec"] = replace(config["spec"], body=replace(body, **{name: value}))
        return
    holder, key = rng.choice([(holder, key) for holder, key in places(config) if key != "spec"])
    if rng.random() < 0.15 and isinstance(holder, dict):
        del holder[key]
    elif isinstance(holder[key], int) and rng.random() < 0.6:
        holder[key] = rng.choice([0, 1, 2, 3, 5, 7, 8, 59, 60, 61, 64, 100, 128, 1000, 2**20, holder[key] + 1, -1])
    else:
        holder[key] = odd(rng, holder[key])


def change_tensor(rng: random.Random, tensors: dict[str, Tensor]) -> None:
    """Change a tensor's dtype, shape or values, drop it, or add another."""
    rare = [name for name in tensors if "layers." not in name]
    name = rng.choice(rare if rare and rng.random() < 0.6 else list(tensors))
    tensor = tensors[name]
    match rng.randrange(8):
        case 0 | 1:
            tensors[name] = tensor.to(rng.choice(DTYPES))
        case 2:
            rows = rng.choice([0, 1, 2, 5, 58, 59, 61, 64, 128])
            tensors[name] = tensor.repeat(130 // max(1, len(tensor)) + 1, *[1] * (tensor.dim() - 1))[:rows]
        case 3:
            size = rng.choice([0, 1, 3, 7])
            tensors[name] = rng.choice(
                [
                    tensor.mT if tensor.dim() > 1 else tensor,
                    tensor.flatten(),
                    tensor[..., :size],
                    tensor[None],
                    tensor.sum(),
                ]
            )
        case 4:
            del tensors[name]
        case 5:
            value = rng.choice([0, -1, 1, 59, 60, 2**31, 2**62, 1e30, float("nan"), float("inf"), -float("inf")])
            where = torch.rand(tensor.shape) < rng.choice([0.1, 1.0])
            with suppress(RuntimeError, OverflowError, ValueError):
                tensors[name] = tensor.masked_fill(where, value)
        case 6:
            tensors[name] = tensor.flip(0)
        case _:
            of = rng.choice(["fc.bias", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d", "input_norm.weight",
                             "hidden_norm.weight", "fc_norm.0.weight", "layers.0.self_attn.q_proj.bias",
                             "layers.7.mlp.up_proj.weight", "layers.0.attention_conv.base_kernel",
                             "candidate_selector.hidden_projection.weight", "markov_head.markov_w1.weight",
                             "markov_head.gate_proj.weight", "layers.0.self_attn.q_norm.weight", "other"])  # fmt: skip
            tensors[of] = torch.randn(rng.choice([(), (0,), (4,), (20,), (60, 4), (60, 20), (2, 2, 20), tensor.shape]))


class Target:
    """A tiny target with its runner, and the texts that it writes."""

    def __init__(self, folder: Path, family: str) -> None:
        folder.mkdir()
        self.assistants: list[Path] = []
        if family == "llama":
            sizes = {**SIZES, "hidden_size": 24}
            write_single(folder, random_tensors(seed=1, **sizes), **sizes)
        else:
            self._save_gemma(folder)
        config = EngineConfig(target=str(folder), drafter=NoDrafter(), max_length=64)
        self._checkpoint = Checkpoint.open(open_source(str(folder)), config)
        self.spec = self._checkpoint.spec
        self._runner = self._checkpoint.load(exactness="fast", capacity=CAPACITY)

    def drafter(self, path: Path, *, is_adaptive: bool) -> Drafters:
        """The drafter of a head.

        Raises:
            ForerunError: it is refused.
        """
        stored = find_head(open_source(str(path)))
        if stored is None:
            open_source(str(path)).spec()
            return Drafters()
        stored.require_fit(self.spec, "the target")
        head = DraftHead(model=str(path), verify_width=8, draft_width=3, depth=3, adaptive=is_adaptive)
        drafter = load_head(
            stored, head, BEST_TREE, self._runner, self._checkpoint, capacity=CAPACITY, max_length=64, cache_bytes=0
        )
        drafters = Drafters({"draft_head": drafter}, is_adaptive=is_adaptive)
        drafters.calibrate(lambda widths, *, budget_s=0.3: Pace(steps=((1, 1e-3), (8, 1.1e-3))))
        return drafters

    def text(self, drafter: Drafters, params: SamplingParams, seed: int) -> list[int]:
        """The tokens of two requests."""
        tokens = list[int]()
        noise = None if params.is_greedy else KeyedNoise(seed, self.spec.vocab_size, device="cpu")
        decoders = (HostDecoder(self._runner, drafter),)
        with inference():
            for prompt in (PROMPT, PROMPT[::-1]):
                own = list[int]()
                request = Request(prompt_ids=prompt, params=params, noise=noise)
                for played in play(decoders, request, NUM_TOKENS):
                    if isinstance(played, Round):
                        own += played.token_ids
                tokens += own[:NUM_TOKENS]
        return tokens

    def _save_gemma(self, folder: Path) -> None:
        pytest.importorskip("transformers")
        from tests.golden.random_families import FAMILIES, gemma4
        from tests.golden.test_assistant import save_assistant

        sizes = {"vocab_size": 60, "vocab_size_per_layer_input": 60, "hidden_size_per_layer_input": 0}
        family = replace(FAMILIES["gemma4"], draw=lambda rng: {**gemma4(rng), **sizes})
        model = family.save(0, folder)
        for number in range(2):
            self.assistants.append(folder.parent / f"assistant {number}")
            save_assistant(0, model, self.assistants[-1], has_centroids=number == 1)
