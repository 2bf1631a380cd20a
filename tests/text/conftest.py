"""Tokenizer folders: tiny ones, always there, and published ones where this machine has them."""

from pathlib import Path

import pytest

from tests.text.tiny_tokenizers import SHARED_DATA, with_tokenizer_file, write_byte_level, write_llama

PUBLISHED = (
    "tokenizers/qwen2.5",
    "tokenizers/deepseek-r1-distill-qwen",
    "tokenizers/phi-3_llama2-vocab",
    "checkpoints/stories260K",
)
TINY = {"byte_level": write_byte_level, "llama": write_llama}


@pytest.fixture(scope="session", params=[*TINY, *PUBLISHED])
def tokenizer_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each tokenizer in turn; a published one is skipped where it is not."""
    name: str = request.param
    if name in TINY:
        return TINY[name](tmp_path_factory.mktemp(name))
    folder = SHARED_DATA / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not on this machine; FORERUN_SHARED_DATA may name the folder that holds it")
    return with_tokenizer_file(folder, tmp_path_factory.mktemp("converted"))
