"""A llama.cpp model with its cache, and the ids in the cache."""

from pathlib import Path
from typing import Any, Final

import llama_cpp
import numpy as np
import numpy.typing as npt

from forerun.bench.peers.messages import PeerError, PeerPlan

Ids = npt.NDArray[np.intc]
BATCH: Final = 512  # rows of one pass, llama.cpp's default
ALL_LAYERS: Final = 10_000
CACHE_TYPES: Final = {"float32": 0, "float16": 1, "bfloat16": 30}  # ggml's type numbers


class Context:
    """One sequence in a cache of `size` tokens."""

    def __init__(self, path: Path, plan: PeerPlan, *, is_flash: bool) -> None:
        self.size = plan.max_length
        self._model: Any = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params(plan))
        if not self._model:
            raise PeerError(f"llama.cpp cannot load {path}: delete the file and try again")
        self.context: Any = llama_cpp.llama_init_from_model(self._model, context_params(plan, is_flash))
        if not self.context:
            raise PeerError(f"llama.cpp has no room for {self.size} tokens of {path}: lower max_length")
        self._memory = llama_cpp.llama_get_memory(self.context)
        self._vocab_size = int(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model)))
        self._batch, self._columns = new_batch()
        self._ids, self._length = np.empty(self.size, dtype=np.intc), 0

    def hold(self, ids: Ids) -> None:
        """Make the cache hold exactly these ids: keep the shared prefix, compute the rest without logits."""
        shared = min(self._length, len(ids))
        differing = np.flatnonzero(self._ids[:shared] != ids[:shared])
        self.truncate(int(differing[0]) if len(differing) else shared)
        while self._length < len(ids):
            self._decode(ids[self._length : self._length + BATCH], has_logits=False)

    def extend(self, ids: Ids) -> None:
        """Run one pass over the ids that follow, with logits for each."""
        self._decode(ids, has_logits=True)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` ids."""
        if length < self._length:
            llama_cpp.llama_memory_seq_rm(self._memory, 0, length, -1)
            self._length = length

    def likeliest(self) -> tuple[int, float]:
        """The likeliest token after the last row, and its probability."""
        logits_V = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), shape=(self._vocab_size,))
        token_id = int(logits_V.argmax())
        return token_id, float(1.0 / np.exp(logits_V - logits_V[token_id]).sum())

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self._model)

    def _decode(self, ids: Ids, *, has_logits: bool) -> None:
        num_rows = len(ids)
        tokens, positions, logits = self._columns
        tokens[:num_rows] = ids
        positions[:num_rows] = np.arange(self._length, self._length + num_rows)
        logits[:num_rows] = has_logits
        self._batch.n_tokens = num_rows
        status = llama_cpp.llama_decode(self.context, self._batch)
        if status:
            raise PeerError(f"llama.cpp failed to decode {num_rows} rows (status {status}): report this")
        self._ids[self._length : self._length + num_rows] = ids
        self._length += num_rows


def model_params(plan: PeerPlan) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0 if plan.device == "cpu" else ALL_LAYERS
    if plan.device != "cpu" and not llama_cpp.llama_supports_gpu_offload():
        raise PeerError("this llama-cpp-python was built without a GPU: install one that was, or leave the peer out")
    return params


def context_params(plan: PeerPlan, is_flash: bool) -> Any:
    """Parameters with our threads, length and cache dtype; the default cache dtype is float16."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = plan.max_length
    params.n_batch = params.n_ubatch = BATCH
    params.n_threads = params.n_threads_batch = plan.num_threads
    params.type_k = params.type_v = CACHE_TYPES[plan.dtype]
    params.flash_attn_type = int(is_flash)
    return params


def new_batch() -> tuple[Any, tuple[Ids, Ids, npt.NDArray[np.int8]]]:
    """A batch of one sequence, with its columns of tokens, positions and logit flags as arrays."""
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
    for row in range(BATCH):
        batch.n_seq_id[row] = 1
        batch.seq_id[row][0] = 0
    tokens, positions, logits = (
        np.ctypeslib.as_array(column, shape=(BATCH,)) for column in (batch.token, batch.pos, batch.logits)
    )
    return batch, (tokens, positions, logits)
