"""What is given to a config is what its annotation says, or an error that says so."""

from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun import ConfigError, DraftModel, EngineConfig, NoDrafter, Parallel, PromptLookup, SamplingParams

WRONG: dict[str, Callable[[], object]] = {
    r"top_k 2\.5 must be a whole number": lambda: SamplingParams(top_k=2.5),  # type: ignore[arg-type]
    r"max_new_tokens 2\.5 must be a whole number or None": lambda: SamplingParams(max_new_tokens=2.5),  # type: ignore[arg-type]
    r"seed nan must be a whole number or None": lambda: SamplingParams(seed=nan),  # type: ignore[arg-type]
    r"stop \(5,\) must be a tuple of strings": lambda: SamplingParams(stop=(5,)),  # type: ignore[arg-type]
    r"stop 'END' must be a tuple of strings: write \('END',\)": lambda: SamplingParams(stop="END"),  # type: ignore[arg-type]
    r"stop_token_ids \('a',\) must be a tuple of whole": lambda: SamplingParams(stop_token_ids=("a",)),  # type: ignore[arg-type]
    r"stop_token_ids 5 must be .*: write \(5,\)": lambda: SamplingParams(stop_token_ids=5),  # type: ignore[arg-type]
    r"logit_bias \{'5': 1\.0\} must be a mapping of whole numbers to numbers": (
        lambda: SamplingParams(logit_bias={"5": 1.0})  # type: ignore[dict-item]
    ),
    r"logit_bias \[5\] must be a mapping": lambda: SamplingParams(logit_bias=[5]),  # type: ignore[arg-type]
    r"temperature '0\.5' must be a number": lambda: SamplingParams(temperature="0.5"),  # type: ignore[arg-type]
    r"temperature True must be a number": lambda: SamplingParams(temperature=True),
    r"top_k True must be a whole number": lambda: SamplingParams(top_k=True),
    r"temperature None must be a number": lambda: SamplingParams(temperature=None),  # type: ignore[arg-type]
    r"temperature 1000+\.\.\. must be a number": lambda: SamplingParams(temperature=10**400),
    r"ignore_eos 'no' must be True or False": lambda: SamplingParams(ignore_eos="no"),  # type: ignore[arg-type]
    r"num_threads '2' must be a whole number or None": lambda: EngineConfig(num_threads="2"),  # type: ignore[arg-type]
    r"target None must be a string": lambda: EngineConfig(target=None),  # type: ignore[arg-type]
    r"device device\(type='cpu'\) must be a string": lambda: EngineConfig(device=torch.device("cpu")),  # type: ignore[arg-type]
    r"dtype torch\.float32 must be one of auto, float32": lambda: EngineConfig(dtype=torch.float32),  # type: ignore[arg-type]
    r"kernels 'fast' must be one of auto, torch, triton": lambda: EngineConfig(kernels="fast"),  # type: ignore[arg-type]
    r"drafter 'prompt_lookup' must be .*PromptLookup\(\)": lambda: EngineConfig(drafter="prompt_lookup"),  # type: ignore[arg-type]
    r"drafter <class .* must be NoDrafter\(\)": lambda: EngineConfig(drafter=PromptLookup),  # type: ignore[arg-type]
    r"draft NoDrafter\(\) must be DraftModel\(\) or LayerSkip\(\)": lambda: Parallel(draft=NoDrafter()),  # type: ignore[arg-type]
    r"cores 2 must be a tuple of whole numbers: write \(2,\)": lambda: Parallel(cores=2),  # type: ignore[arg-type]
    r"without 'speed' must be one of send_ahead": lambda: Parallel(without=["noise", "speed"]),  # type: ignore[arg-type]
    r"without 'noise' must be a tuple of one of .*: write \('noise',\)": lambda: Parallel(without="noise"),  # type: ignore[arg-type]
    r"adaptive 1 must be True or False": lambda: DraftModel(adaptive=1),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("message", WRONG)
def test_a_value_of_another_type_is_named_with_what_is_needed(message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WRONG[message]()


def test_numbers_of_numpy_and_torch_lists_and_paths_become_plain() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(5), seed=np.uint64(7), stop=["", "a"],  # type: ignore[arg-type]
        stop_token_ids=torch.tensor([1, 2]), logit_bias={np.int32(3): 1},  # type: ignore[arg-type, dict-item]
    )  # fmt: skip
    plain = SamplingParams(
        temperature=0.5, top_k=5, seed=7, stop=("a",), stop_token_ids=(1, 2), logit_bias={3: 1.0}
    )  # fmt: skip
    assert repr(params) == repr(plain)
    assert Parallel(cores=[np.int64(1), 2]).cores == (1, 2)  # type: ignore[arg-type]
    assert EngineConfig(target=Path("models") / "mine").target == str(Path("models") / "mine")  # type: ignore[arg-type]
