"""Whole engines on Triton's kernels: the texts are those of the CPU's own kernels, whichever way a request goes."""

import random
from pathlib import Path

import pytest

from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import Automatic, DraftHead, DraftModel, NoDrafter
from forerun.core.errors import RankLostError
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.policies import Policies, TreePolicy
from forerun.engine.engine import Engine
from tests.conftest import SIZES
from tests.drafting.heads.published import write_dflash, write_eagle
from tests.drafting.heads.random_heads import random_body
from tests.engine.test_shared_model import follower_of_this_process
from tests.text.tiny_tokenizers import write_byte_level

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("emulation")

PROMPT = "def add(a, b):"
SHORT = SamplingParams(max_new_tokens=6, ignore_eos=True)
FILTERED = SamplingParams(max_new_tokens=3, ignore_eos=True, temperature=0.8, top_k=5, seed=1)
LIKELY = SamplingParams(max_new_tokens=3, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Target and draft with heads of a size that the kernels know."""
    from tests.golden.families import qwen2  # brings transformers along

    folders = []
    for name, num_layers in (("target", 2), ("draft", 1)):
        folder = tmp_path_factory.mktemp(name)
        qwen2(**SIZES, num_attention_heads=3, num_key_value_heads=1, num_hidden_layers=num_layers).save(folder)
        folders.append(str(write_byte_level(folder)))
    return folders[0], folders[1]


def test_texts_are_those_of_the_cpus_kernels(pair: tuple[str, str]) -> None:
    target, draft = pair
    tree = DraftModel(model=draft, verify_width=4, draft_width=2, depth=1, adaptive=False)
    with Engine(EngineConfig(target=target, dtype="float32", drafter=NoDrafter(), max_length=40)) as engine:
        expected = [engine.generate(PROMPT, params).token_ids for params in (SHORT, FILTERED)]
        likely = [item for step in engine.stream(PROMPT, LIKELY) for item in step.logprobs]
    config = EngineConfig(target=target, dtype="float32", drafter=tree, max_length=40, kernels="triton")
    with Engine(config, policies=Policies(tree=TreePolicy(num_children=2, looks_up=False))) as engine:
        found = [engine.generate(PROMPT, params) for params in (SHORT, FILTERED)]
        on_device = [item for step in engine.stream(PROMPT, LIKELY) for item in step.logprobs]
        predicted = engine.generate(PROMPT, LIKELY, prediction=expected[0])
    assert [generation.token_ids for generation in found] == expected
    assert found[0].stats.num_near_ties == 0
    assert [item.token_id for item in on_device] == [item.token_id for item in likely] == list(expected[0][:3])
    assert [item.logprob for item in on_device] == pytest.approx([item.logprob for item in likely], abs=1e-4)
    assert predicted.token_ids == expected[0][:3]
    assert predicted.stats.num_predicted_accepted > 0


def write_random_head(kind: str, folder: Path, target: ModelSpec) -> Path:
    rng = random.Random(1)
    sizes = {"hidden_size": 32, "num_layers": 1}
    if kind == "eagle3":
        body = random_body(rng, **sizes, vocab_size=target.vocab_size // 2)
        head = EagleSpec(body=body, target_hidden_size=target.hidden_size, layer_ids=(1, 2), num_taps=2)
        return write_eagle(folder, head, target)
    body = random_body(rng, **sizes, vocab_size=target.vocab_size, qkv_bias=False, qk_norm=True)
    block = DFlashSpec(
        body=body, target_hidden_size=target.hidden_size, layer_ids=(0, 1), block_size=3, mask_token_id=0,
        windows=(None,), is_causal=(False,), pair_rank=4, num_pairs=3, conv_kernel=2, conv_group=2,
    )  # fmt: skip
    return write_dflash(folder, block, target)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # of numpy, after the last predicted token
@pytest.mark.slow  # by default backends/gpu/test_heads_on_device and test_dflash_on_device
@pytest.mark.parametrize("kind", ["eagle3", "dflash2"])
def test_a_head_drafts_on_the_device(
    kind: str, pair: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_random_head(kind, tmp_path, open_source(pair[0]).spec())
    tree = DraftHead(model=str(head), verify_width=4, draft_width=2, depth=2, adaptive=False)
    with Engine(EngineConfig(target=pair[0], dtype="float32", drafter=NoDrafter(), max_length=40)) as engine:
        expected = engine.generate(PROMPT, SHORT).token_ids
    config = EngineConfig(target=pair[0], dtype="float32", drafter=tree, max_length=40, kernels="triton")
    monkeypatch.setattr("forerun.decoding.host_loop.HostDecoder.rounds", None)
    with Engine(config, policies=Policies(tree=TreePolicy(num_children=2))) as engine:
        found = engine.generate(PROMPT, SHORT)
    assert found.token_ids == expected
    assert found.stats.num_drafted > 0


@pytest.mark.slow  # with backends that say so: test_heads
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_auto_has_the_named_draft_alone_where_the_device_plays_its_rounds(
    pair: tuple[str, str], num_ranks: int
) -> None:
    tree = DraftModel(model=pair[1], verify_width=4, draft_width=2, depth=1)
    config = EngineConfig(
        target=pair[0], dtype="float32", drafter=Automatic(draft=tree), max_length=40, kernels="triton",
        target_ranks=num_ranks,
    )  # fmt: skip
    with Engine(config, policies=Policies(tree=TreePolicy(num_children=2, looks_up=False))) as engine:
        others = ["recycling", "prompt_lookup"]
        assert list(engine.drafting.held) == ["draft_model", *([] if num_ranks == 1 else others)]


@pytest.mark.slow  # their passes: backends/gpu/test_peer_group
def test_ranks_with_these_kernels_write_the_text_of_one_process(pair: tuple[str, str]) -> None:
    """By the host's loop, though the draft could play whole rounds on the device."""
    target, draft = pair
    tree = DraftModel(model=draft, verify_width=3, draft_width=2, depth=1, adaptive=False)
    with Engine(EngineConfig(target=target, dtype="float32", drafter=NoDrafter(), max_length=40)) as engine:
        expected = [engine.generate(PROMPT, params).token_ids for params in (SHORT, FILTERED)]
    with Engine(
        EngineConfig(target=target, dtype="float32", drafter=tree, max_length=40, kernels="triton", target_ranks=2)
    ) as engine:
        assert [engine.generate(PROMPT, params).token_ids for params in (SHORT, FILTERED)] == expected
        assert engine.kernels_name == "triton"
        follower_of_this_process().kill()
        with pytest.raises(RankLostError, match=r"rank 1 of the target \(pid \d+\) ended with signal 9"):
            engine.generate(PROMPT, SHORT)
