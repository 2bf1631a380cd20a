"""llama.cpp's own server, where there is one: FORERUN_LLAMA_SERVER names it, else it is looked for on the path."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench.peers.catalogue import open_peer
from forerun.bench.peers.llama_server_peer import server_flags
from forerun.bench.peers.messages import PeerError, PeerPlan
from tests.bench.peers.pairs import Pair, check_peer, opened

SERVER = os.environ.get("FORERUN_LLAMA_SERVER") or shutil.which("llama-server")
NEEDS_SERVER = pytest.mark.skipif(SERVER is None, reason="there is no llama-server")


def plan_of(pair: Pair, **settings: object) -> PeerPlan:
    return replace(
        pair.plan, dtype="bfloat16", num_threads=3, max_length=128, llama_server=sys.executable, settings=settings
    )


def test_the_server_gets_our_threads_length_and_dtype(pair: Pair) -> None:
    pytest.importorskip("gguf")
    flags = " ".join(server_flags(plan_of(pair), port="80"))
    assert "--threads 3 --threads-batch 3" in flags
    assert "--ctx-size 128" in flags
    assert "--cache-type-k bf16 --cache-type-v bf16" in flags


def test_settings_are_flags_of_the_server(pair: Pair) -> None:
    pytest.importorskip("gguf")
    drafted = replace(plan_of(pair, spec_draft_n_max=4, spec_draft_p_min=0.5, draft_weights="int8"), mode="draft")
    flags = " ".join(server_flags(drafted, port="80"))
    assert "--spec-type draft-simple --spec-draft-n-max 4 --spec-draft-p-min 0.5 --model-draft" in flags
    assert "draft-int8-" in flags
    assert "draft-weights" not in flags
    looked_up = replace(plan_of(pair, spec_type="ngram-mod"), mode="lookup")
    assert server_flags(looked_up, port="80")[-2:] == ["--spec-type", "ngram-mod"]


def test_a_binary_that_ends_at_once_is_an_error(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="status 7"):
        open_peer("llama_server", replace(pair.plan, llama_server=str(program)), {})


@NEEDS_SERVER
@pytest.mark.parametrize("name", ["llama_server", "llama_server_draft", "llama_server_lookup"])
def test_the_server_writes_our_ids(pair: Pair, name: str) -> None:
    with opened(name, replace(pair.plan, llama_server=str(SERVER))) as peer:
        check_peer(peer, pair)
