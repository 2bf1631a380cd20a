"""A table of the target's latest top-k next tokens after every token.

Legend: N tokens, K successors kept per token, V vocabulary.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

NUM_KEPT: Final = 16  # successors per token, the kernels' maximum; at temperature 1 even the ninth is useful
HEADER: Final = struct.Struct("<8sIIII")  # magic, vocabulary, successors of a token, tokens, checksum of the rest
MAGIC: Final = b"frsucc1\n"
ROW: Final = np.dtype([("token", "<i4"), ("successors", "<i4", NUM_KEPT), ("log_probs", "<f2", NUM_KEPT)])


class SuccessorTable:
    """For each token, its likely next tokens and their log-probabilities, likeliest first.

    Its size is fixed: 129 bytes per token of the vocabulary.

    Source: the adjacency matrix of Token Recycling, arXiv 2408.08696, section 3.1; ours keeps probabilities too.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._forget()

    def _forget(self) -> None:
        self._is_known = bytearray(self.vocab_size)
        self._successors = np.zeros((self.vocab_size, NUM_KEPT), np.int32)
        self._log_probs = np.full((self.vocab_size, NUM_KEPT), -np.inf, np.float32)

    def __contains__(self, token_id: int) -> bool:
        """Whether successors of this token are known."""
        return self._is_known[token_id] == 1

    @property
    def num_known(self) -> int:
        """Number of tokens with known successors."""
        return self._is_known.count(1)

    def store(
        self, token_ids: Sequence[int], successors: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Replace the successors of these tokens; if a token occurs twice, the last entry is stored."""
        width = len(successors[0])  # less than K in a small vocabulary; the other entries keep probability 0
        self._successors[token_ids, :width] = successors
        self._log_probs[token_ids, :width] = log_probs
        for token_id in token_ids:
            self._is_known[token_id] = 1

    def rows(self, token_ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """[N, K] successors of these tokens, and their log-probabilities."""
        return self._successors.take(token_ids, 0), self._log_probs.take(token_ids, 0)

    def to_bytes(self) -> bytes:
        """The known successors, for `restore` in a later process."""
        known = np.flatnonzero(np.frombuffer(self._is_known, np.bool_))
        rows = np.empty(len(known), ROW)
        rows["token"] = known
        rows["successors"] = self._successors[known]
        rows["log_probs"] = self._log_probs[known]
        body = rows.tobytes()
        return HEADER.pack(MAGIC, self.vocab_size, NUM_KEPT, len(known), zlib.crc32(body)) + body

    def restore(self, data: bytes) -> bool:
        """Load the output of `to_bytes`; False if the bytes are invalid, and the table is then empty.

        Bytes that are damaged or from another model can only cost speed, since ids outside the vocabulary are refused.
        """
        self._forget()
        if len(data) < HEADER.size:
            return False
        magic, vocab_size, num_kept, num_rows, checksum = HEADER.unpack_from(data)
        body = memoryview(data)[HEADER.size :]
        is_ours = (magic, vocab_size, num_kept) == (MAGIC, self.vocab_size, NUM_KEPT)
        if not is_ours or len(body) != num_rows * ROW.itemsize or zlib.crc32(body) != checksum:
            return False
        rows = np.frombuffer(body, ROW)
        for ids in (rows["token"], rows["successors"]):
            if ids.size and not 0 <= ids.min() <= ids.max() < vocab_size:
                return False
        if np.isnan(rows["log_probs"]).any() or (rows["log_probs"] > 0).any():
            return False
        if num_rows:
            self.store(rows["token"].tolist(), rows["successors"].tolist(), rows["log_probs"].tolist())
        return True
