"""llama.cpp's own server, where there is one: FORERUN_LLAMA_SERVER names it, else it is looked for on the path."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench.peers.catalogue import open_peer
from forerun.bench.peers.llama_server_peer import draft_flags, server_flags
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


def test_a_draft_is_set_in_the_words_of_the_servers_version(pair: Pair) -> None:
    told = plan_of(pair, draft_max=4, draft_p_min=0.5)
    assert draft_flags(told, "--draft-max N") == ["--draft-max", "4", "--draft-p-min", "0.5"]
    new = draft_flags(told, "--spec-draft-n-max N, --cache-type-k-draft TYPE")
    assert new[:2] == ["--spec-type", "draft-simple"]
    assert new[-4:] == ["--spec-draft-n-max", "4", "--spec-draft-p-min", "0.5"]
    assert "bf16" in new


def test_a_binary_that_ends_at_once_is_an_error(pair: Pair, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    with pytest.raises(PeerError, match="status 7"):
        open_peer("llama_server", replace(pair.plan, llama_server=str(program)), {})


@NEEDS_SERVER
@pytest.mark.parametrize("name", ["llama_server", "llama_server_draft"])
def test_the_server_writes_our_ids(pair: Pair, name: str) -> None:
    with opened(name, replace(pair.plan, llama_server=str(SERVER))) as peer:
        check_peer(peer, pair)
