"""The target's likeliest successors of every token, as it last said them.

Legend: N tokens, K successors kept of each, V vocabulary.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

NUM_KEPT: Final = 16  # successors of a token: the most that the kernels find; at temperature 1 the ninth still pays
HEADER: Final = struct.Struct("<8sIIII")  # magic, vocabulary, successors of a token, tokens, checksum of the rest
MAGIC: Final = b"frsucc1\n"
ROW: Final = np.dtype([("token", "<i4"), ("successors", "<i4", NUM_KEPT), ("log_probs", "<f2", NUM_KEPT)])


class SuccessorTable:
    """For each token, tokens that may follow it and their log-probabilities, likeliest first.

    Bounded: 129 bytes for each token of the vocabulary.

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
        """Tokens with successors."""
        return self._is_known.count(1)

    def store(
        self, token_ids: Sequence[int], successors: Sequence[Sequence[int]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Replace the successors of these tokens; of one that is named twice, the last counts."""
        width = len(successors[0])  # less than K in a small vocabulary, where the other places stay impossible
        self._successors[token_ids, :width] = successors
        self._log_probs[token_ids, :width] = log_probs
        for token_id in token_ids:
            self._is_known[token_id] = 1

    def rows(self, token_ids: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """[N, K] successors of these tokens, and their log-probabilities."""
        return self._successors.take(token_ids, 0), self._log_probs.take(token_ids, 0)

    def to_bytes(self) -> bytes:
        """What is known, for `restore` in a later process."""
        known = np.flatnonzero(np.frombuffer(self._is_known, np.bool_))
        rows = np.empty(len(known), ROW)
        rows["token"], rows["successors"] = known, self._successors[known]
        rows["log_probs"] = self._log_probs[known]
        body = rows.tobytes()
        return HEADER.pack(MAGIC, self.vocab_size, NUM_KEPT, len(known), zlib.crc32(body)) + body

    def restore(self, data: bytes) -> bool:
        """Take over what `to_bytes` gave; False, and nothing is known, where these bytes are not that.

        They may be damaged or another model's, and can only cost speed: ids outside the vocabulary are refused.
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
