"""The same text from GGUF files of any formats, whichever drafter: random models, requests, interrupts and turns."""

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import pytest
import torch

from forerun.backends.choose import choose_backend
from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.core.config import SamplingParams
from forerun.core.model_spec import WeightFormat
from forerun.decoding.decoder import Request
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import decode
from forerun.decoding.verifier import Verifier
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.model.gguf_block_types import BLOCKS
from forerun.model.gguf_blocks import dequantise_blocks
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun.sampling.noise import KeyedNoise
from tests.blocks import random_blocks
from tests.checkpoints.gguf.models import OF_ARCHITECTURE, SHAPES, metadata_of
from tests.random_settings import random_params
from tests.tiny import CAPACITY, decode_ids, drafters_of, poison_freed_slots
from tests.varied import draft_model, layer_skip, prompt_lookup, recycling

NUM_MODELS = 5
NUM_SLOW_MODELS = 400
MODELS_PER_CHUNK = 20
TURNS = 3  # requests of one drafter, each beginning with a part of the text before it
TYPES: Final = ("F32", "F16", "BF16", *BLOCKS)
FLOATS: Final = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SPREAD: Final = 0.12  # of logits among some fifty tokens at 256 inputs: several stay likely
SKIP: Final = layer_skip(adaptive=False, search="gated", search_share=0.5, draft_width=2, depth=4)


def write_random_model(path: Path, rng: random.Random, *, vocab_size: int, only: str | None = None) -> dict[str, str]:
    """A model of one to three layers, each matrix of any type, or of one type only; the types by tensor."""
    architecture = rng.choice(list(OF_ARCHITECTURE))
    num_layers = rng.randint(1, 3)
    is_mixed = rng.random() < 0.6 and only is None
    shapes = {"token_embd.weight": (vocab_size, 256), "output_norm.weight": (256,)}
    if rng.random() < 0.5:
        shapes["output.weight"] = (vocab_size, 256)
    for layer in range(num_layers):
        parts = SHAPES | OF_ARCHITECTURE[architecture]
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    common = only or rng.choice(TYPES)
    types = {name: rng.choice(TYPES) if is_mixed else common for name, shape in shapes.items() if len(shape) == 2}
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata_of(architecture) | {f"{architecture}.block_count": num_layers}).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, shape in shapes.items():
        add_even(writer, name, shape, types.get(name, "F32"), rng.randrange(2**31))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return types


def add_even(writer: Any, name: str, shape: tuple[int, ...], type_name: str, seed: int) -> None:
    """A tensor whose values have about the spread that a trained one has."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name in BLOCKS:
        size = {"num_out": shape[0], "blocks_in_row": shape[1] // BLOCKS[type_name].num_elements}
        loud = dequantise_blocks(random_blocks(type_name, seed=seed, **size), type_name).std()
        rows = random_blocks(type_name, seed=seed, **size, scale=SPREAD / float(loud))
        writer.add_tensor(name, rows.numpy(), raw_dtype=kind)
        return
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    values = 1.0 + 0.1 * values if name.endswith("norm.weight") else SPREAD * values
    raw = values.to(FLOATS[type_name])
    writer.add_tensor(name, (raw.view(torch.uint8) if type_name == "BF16" else raw).numpy(), raw_dtype=kind)


def runner_of(path: Path, dtype: torch.dtype, weight_format: WeightFormat) -> Runner:
    source = GgufCheckpoint(name="x", path=path)
    spec = source.spec()
    return Runner(
        spec,
        source.weights(dtype=dtype, weight_format=weight_format),
        backend=choose_backend("fast", dtype=dtype, device="cpu", head_dim=spec.head_dim).backend,
        capacity=CAPACITY + rows_behind_text(SKIP.config, SKIP.policies.skip),
        dtype=dtype,
        device="cpu",
    )


class Model:
    """A random target, which every drafter has to itself, and their requests.

    Args:
        only: the type of all its matrices, which are then kept as they are.
    """

    def __init__(self, folder: Path, number: int, only: str | None = None) -> None:
        self.rng = rng = random.Random(number)
        self.number = number
        vocab_size = rng.choice([3, 9, 16, 17, 40, 60])
        self.paths = [folder / f"{number}-{name}.gguf" for name in ("target", "draft")]
        self.types = write_random_model(self.paths[0], rng, vocab_size=vocab_size, only=only)
        write_random_model(self.paths[1], rng, vocab_size=vocab_size)
        self.dtype = rng.choice([torch.float32, torch.bfloat16])
        self.weight_format: WeightFormat = rng.choice(["plain", "plain", "plain", "int8", "int4"])
        if only is not None:
            self.weight_format = "plain"
        self.vocab_size = vocab_size

    def __str__(self) -> str:
        return f"model {self.number} ({self.dtype}, {self.weight_format}, {self.vocab_size} tokens, {self.types})"

    def target(self) -> Runner:
        runner = runner_of(self.paths[0], self.dtype, self.weight_format)
        poison_freed_slots(runner)
        return runner

    def drafters(self) -> Mapping[str, tuple[Runner, Drafter | Drafters]]:
        """Each with a target of its own."""
        return {
            name: (target, self.drafter(name, target))
            for name in ("prompt_lookup", "recycling", "draft_model", "layer_skip", "layer_skip, int4", "auto")
            for target in [self.target()]
        }

    def drafter(self, name: str, target: Runner) -> Drafter | Drafters:
        match name:
            case "prompt_lookup":
                return PromptLookupDrafter(prompt_lookup(lengths=(4, 3, 2, 1), adaptive=False).config)
            case "recycling":
                return TokenRecyclingDrafter(recycling(adaptive=False).config, target_vocab_size=self.vocab_size)
            case "draft_model":
                path = self.paths[self.rng.random() < 0.5]  # the target's own file, of which much is accepted
                runner = runner_of(path, self.dtype, self.rng.choice(["plain", "int8"]))
                config = draft_model(adaptive=False, depth=4).config
                return DraftModelDrafter(runner, config, target_vocab_size=self.vocab_size)
            case "auto":
                several = ("recycling", "draft_model", "prompt_lookup", "layer_skip")
                return Drafters({each: self.drafter(each, target) for each in several})
            case _:
                copy = None
                if name.endswith("int4"):
                    source = GgufCheckpoint(name="x", path=self.paths[0])
                    weights = source.weights(dtype=self.dtype, weight_format="int4")
                    copy = target.backend.executor(target.spec, weights, target.cache)
                return LayerSkipDrafter(
                    SharedCacheRunner(target, copy), SKIP.config, policy=SKIP.policies.skip, tree=SKIP.policies.tree
                )

    def differences(self, totals: Counter[str]) -> list[str]:
        """Play some requests with every drafter; every text that is not that of plain decoding."""
        found = []
        plain = self.target()
        drafters = self.drafters()
        prompt_ids = [self.rng.randrange(self.vocab_size) for _ in range(self.rng.choice([1, 2, 9, 40]))]
        for turn in range(TURNS):
            params = random_params(self.rng, self.vocab_size)
            seed = self.rng.randrange(2**63)
            num_tokens = self.rng.choice([1, 5, 24, CAPACITY - len(prompt_ids)])
            expected = decode_ids(plain, Drafters(), prompt_ids, params, seed=seed, num_tokens=num_tokens)
            for name, (target, drafter) in drafters.items():
                if self.rng.random() < 0.3:
                    play(target, drafter, [*prompt_ids, 0], params, seed, num_rounds=3)
                rounds = play(target, drafter, prompt_ids, params, seed, num_tokens=num_tokens)
                text = [token for done in rounds for token in done.token_ids][:num_tokens]
                totals[f"{name}: texts"] += 1
                totals[f"{name}: accepted"] += sum(done.stats.num_accepted for done in rounds)
                if text != expected:
                    found.append(f"{self}, {name}, turn {turn}, {params}: {text} instead of {expected}")
            prompt_ids = [*prompt_ids, *expected][: self.rng.randint(1, CAPACITY // 2)]
        return found


def play(
    target: Runner, drafter: Drafter | Drafters, prompt_ids: list[int], params: SamplingParams, seed: int, *,
    num_tokens: int = CAPACITY, num_rounds: int = CAPACITY,
) -> list[Any]:  # fmt: skip
    """A request, which is interrupted after so many rounds."""
    noise = None if params.is_greedy else KeyedNoise(seed, target.spec.vocab_size, device="cpu")
    target.sync(prompt_ids[:-1])
    drafters = drafters_of(drafter)
    drafters.start_text(Request(prompt_ids=prompt_ids, params=params, noise=noise), target.drop_rows)
    rounds = decode(Verifier(target, params, prompt_ids, noise), drafters, near_tie=0.0, num_tokens=num_tokens)
    played = [done for done, _ in zip(rounds, range(num_rounds), strict=False)]
    rounds.close()
    return played


def check(folder: Path, numbers: range) -> tuple[list[str], Counter[str]]:
    totals: Counter[str] = Counter()
    found = []
    for number in numbers:
        found += Model(folder, number).differences(totals)
        for path in folder.glob("*.gguf"):
            path.unlink()
    return found, totals


def test_files_of_any_formats_give_the_same_text_with_every_drafter(tmp_path: Path) -> None:
    found, totals = check(tmp_path, range(NUM_MODELS))
    assert found == []
    assert all(totals[name] for name in totals if name.endswith("accepted")), totals


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_files_of_one_type_give_the_same_text_with_every_drafter(kind: str, tmp_path: Path) -> None:
    totals: Counter[str] = Counter()
    assert Model(tmp_path, 3, kind).differences(totals) == []
    assert totals["draft_model: accepted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(NUM_SLOW_MODELS // MODELS_PER_CHUNK))
def test_many_files_of_any_formats_give_the_same_text_with_every_drafter(chunk: int, tmp_path: Path) -> None:
    first = NUM_MODELS + chunk * MODELS_PER_CHUNK
    found, totals = check(tmp_path, range(first, first + MODELS_PER_CHUNK))
    assert found == []
    assert all(totals[name] for name in totals if name.endswith("accepted")), totals
