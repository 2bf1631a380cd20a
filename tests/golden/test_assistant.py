"""Gemma 4's assistants: the logits of transformers in float64 along drafted chains, and the target's own text."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.backends.backend import Backend
from forerun.backends.bind import embedding_scale
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.torch.backend import FUSED
from forerun.checkpoints.open import open_source
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.core.errors import CheckpointError
from forerun.core.sublayers import NOTHING
from forerun.decoding.drafters import Drafters
from forerun.drafting.heads.assistant import AssistantSpec, token_order
from forerun.drafting.heads.assistant_network import AssistantDrafter, AssistantExecutor, AssistantHead, AssistantRows
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.layer import HeadWeights, embedding
from forerun.drafting.heads.stored import find_head
from forerun.model.quantise import as_plain
from forerun.model.runner import Runner
from forerun.speculation.tree import TokenTree
from tests.marks import rest_slow
from tests.model.kernel_sets import NATIVE_SETS
from tests.tiny import decode_ids, decode_rounds, plain_spec

pytest.importorskip("transformers")
import transformers

from tests.golden.random_families import FAMILIES, gemma4, sizes, wide_norms

CAPACITY = 120
MAX_ERROR = 1e-9
MAX_ERROR_FLOAT32 = 1e-3  # relative to the largest logit; torch reaches 4e-4 in one of 60 random targets
KERNELS = [pytest.param(FUSED, id="fused"), *NATIVE_SETS]
CONFIG = DraftHead(model="-", verify_width=12, draft_width=4, depth=4, adaptive=False)


def save_assistant(seed: int, target: Any, folder: Path, *, has_centroids: bool) -> Any:
    """A random assistant for the target of this seed."""
    rng = random.Random(seed)
    drawn = {**sizes(rng), **gemma4(rng)}
    shared = ("head_dim", "global_head_dim", "num_key_value_heads", "num_global_key_value_heads", "attention_k_eq_v")
    vocab_size = target.config.vocab_size
    text = transformers.Gemma4TextConfig(
        vocab_size=vocab_size, vocab_size_per_layer_input=0, hidden_size_per_layer_input=0, num_hidden_layers=4,
        hidden_size=rng.choice([8, 16]), intermediate_size=24, num_attention_heads=rng.choice([2, 4]),
        sliding_window=drawn["sliding_window"], **{key: drawn[key] for key in shared},
        num_kv_shared_layers=4, use_double_wide_mlp=False, enable_moe_block=False,
        layer_types=["sliding_attention"] * 3 + ["full_attention"], dtype="float64",
    )  # fmt: skip
    num_centroids = next(number for number in range(4, vocab_size + 1) if vocab_size % number == 0)
    centroids = {"use_ordered_embeddings": True, "num_centroids": num_centroids, "centroid_intermediate_top_k": 3}
    config = transformers.Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=target.config.hidden_size, **(centroids if has_centroids else {}),
    )  # fmt: skip
    model = transformers.Gemma4AssistantForCausalLM(config).double().train(False)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.uniform_(0.6, 1.6, generator=generator) if "norm" in name else weight.normal_(
                0.0, 0.4, generator=generator
            )
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5, generator=generator)
            if name.endswith("token_ordering"):
                buffer.copy_(torch.randperm(vocab_size, generator=generator))
    model.save_pretrained(folder)
    return model


class Pair:
    """A random target and an assistant, of transformers and here, on the kernels of a backend."""

    def __init__(self, seed: int, folder: Path, kernels: Backend = FUSED) -> None:
        dtype = self.dtype = torch.float32 if kernels is NATIVE else torch.float64
        self.rng = random.Random(seed)
        has_centroids = seed % 2 == 1
        self.target = FAMILIES["gemma4"].save(seed, folder / "target")
        self.assistant = save_assistant(seed, self.target, folder / "assistant", has_centroids=has_centroids)
        source = open_source(str(folder / "target"))
        stored = find_head(open_source(str(folder / "assistant")))
        assert stored is not None, "an assistant is recognised"
        self.stored: StoredHead = stored
        self.spec = source.spec()
        stored.require_fit(self.spec, "the target")
        assert isinstance(stored.spec, AssistantSpec)
        weights = source.weights(dtype=dtype)
        self.runner = Runner(
            self.spec, source.weights(dtype=dtype), backend=kernels, capacity=CAPACITY, dtype=dtype, device="cpu",
        )  # fmt: skip
        head = AssistantHead(
            stored.spec, HeadWeights(stored.weights(dtype=dtype, device="cpu")),
            embed=embedding(as_plain(weights.table())), scale=embedding_scale(self.spec, dtype),
            final_norm=weights.vector("final_norm"), eps=self.spec.norm_eps, order=token_order(stored),
            capacity=CAPACITY,
        )  # fmt: skip
        body = stored.spec.body
        layers = [stored.spec.layer_of(self.spec, idx) for idx in range(body.num_layers)]
        self.executor = AssistantExecutor(head, self.runner.cache, layers)
        self.own = Runner(
            body, None, backend=kernels, capacity=64, dtype=dtype, device="cpu",
            make_executor=lambda _: self.executor,
        )  # fmt: skip

    def tokens(self, number: int) -> list[int]:
        return [self.rng.randrange(self.spec.vocab_size) for _ in range(number)]

    def golden(self, text: Sequence[int], drafted: Sequence[int]) -> list[Tensor]:
        """The logits after the root and after each drafted token, by transformers."""
        with torch.no_grad(), wide_norms(self.target):
            seen = self.target(
                torch.tensor([text[:-1]]), output_hidden_states=True, return_shared_kv_states=True, use_cache=False
            )
        state = seen.hidden_states[-1][:, -1:]
        found = []
        with torch.no_grad(), wide_norms(self.assistant):
            for token in (text[-1], *drafted):
                embedded = self.target.get_input_embeddings()(torch.tensor([[token]]))
                output = self.assistant(
                    inputs_embeds=torch.cat((embedded, state), -1), position_ids=torch.tensor([[len(text) - 1]]),
                    attention_mask=None, shared_kv_states=seen.shared_kv_states,
                )  # fmt: skip
                found.append(output.logits[0, 0])
                state = output.last_hidden_state
        return found


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("seed", rest_slow(range(60), 2))
def test_drafted_chains_have_the_logits_of_transformers(seed: int, kernels: Backend, tmp_path: Path) -> None:
    pair = Pair(seed, tmp_path, kernels)
    for num_tokens in (2, 3, 9, 31):  # windows have 5 or 9 tokens
        text = pair.tokens(num_tokens)
        drafted = pair.tokens(3)
        pair.runner.sync(())
        output = pair.runner.append(text[:-1], num_logit_rows=0, taps=(pair.spec.num_layers - 1,))
        features = TextFeatures([0], pair.dtype)
        rows = AssistantRows(pair.own, pair.executor, features)
        rows.start_text(text, "")
        assert not rows.has_room(1)
        assert output.features is not None
        features.read(num_tokens - 2, output.features[-1:])
        tree = TokenTree(text[-1])
        for depth, token in enumerate(drafted):
            tree.add(depth, token, -1.0)
        for depth, expected in enumerate(pair.golden(text, drafted)):
            found = rows.expand(tree, [depth], [tree.token_ids[depth]], text, NOTHING)[0]
            is_there = torch.isfinite(found)
            most = MAX_ERROR if kernels is FUSED else MAX_ERROR_FLOAT32 * expected[is_there].abs().max()
            assert (found - expected)[is_there].abs().max() <= most
            spec = pair.executor.head.spec
            if spec.num_active:
                assert is_there.sum() == 3 * spec.body.vocab_size // spec.num_centroids
                assert expected[~is_there].max() < expected[is_there].min()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", rest_slow(range(40), 1))
def test_the_text_is_the_targets_own(seed: int, temperature: float, kernels: Backend, tmp_path: Path) -> None:
    pair = Pair(seed, tmp_path, kernels)
    drafter = AssistantDrafter(
        pair.own, CONFIG, target_vocab_size=pair.spec.vocab_size, taps=(pair.spec.num_layers - 1,)
    )
    num_drafted = 0
    for penalty in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, presence_penalty=penalty)
        prompt = pair.tokens(7)
        request = {"seed": seed, "num_tokens": 20}
        expected = decode_ids(pair.runner, Drafters(), prompt, params, **request)
        rounds = decode_rounds(pair.runner, drafter, prompt, params, **request)
        assert [token for done in rounds for token in done.token_ids][:20] == expected
        num_drafted += sum(done.stats.num_drafted for done in rounds)
        assert len(drafter._features) <= 16
    assert num_drafted > 0


def test_targets_with_other_keys_are_refused(tmp_path: Path) -> None:
    pair = Pair(0, tmp_path)
    with pytest.raises(CheckpointError, match="heads of size"):
        pair.stored.require_fit(plain_spec(hidden_size=pair.spec.hidden_size), "another")
