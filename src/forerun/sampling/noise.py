"""Gumbel noise that depends only on seed, position and token id.

Legend: P positions, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MASK_64 = (1 << 64) - 1
# Noise values made at once: enough that the calls' overhead does not matter, few enough for the CPU's cache.
ELEMENTS_PER_BLOCK = 1 << 16
MAX_ROWS_PER_BLOCK = 16
MAX_ROWS_KEPT = 128
TOKEN_STEP = 0x9E3779B1  # a token's id times this is added to the low half of a row's key


def splitmix64(value: int) -> int:
    """One step of the SplitMix64 generator (Steele, Lea, Flood, 2014): a strong mix of 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)


def signed_mix(seed: int) -> int:
    """The mixed seed as a signed 64-bit number. A row's key is made from it and the row's position."""
    mix = splitmix64(seed)
    return mix - (1 << 64) if mix >> 63 else mix


def signed32(value: int) -> int:
    """The low 32 bits as a signed integer."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def row_key(seed: int, position: int) -> tuple[int, int]:
    """The low and high 32 bits, signed, of the key from which all noise at a position is made."""
    key = splitmix64(splitmix64(seed) ^ position)
    return signed32(key), signed32(key >> 32)


def mix32_(x: Tensor) -> Tensor:
    """Mix int32 bits in place: a bijection with low bias (C. Wellons' hash prospector, "lowbias32")."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x21F0AAAD
    x ^= (x >> 15) & 0x1FFFF
    x *= signed32(0xD35A2D97)
    x ^= (x >> 15) & 0x1FFFF
    return x


def mixed32(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """`mix32_` for numpy arrays, not in place."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0xD35A2D97)
    return x ^ (x >> np.uint32(15))


def gumbel_rows(seed: int, positions: Sequence[int], vocab_size: int, *, device: str) -> Tensor:
    """[P, V] float32 standard Gumbel noise for the tokens at `positions`.

    Integer hashing gives the same 32 uniform bits on every device; logarithms are taken in float64 and rounded once.
    """
    keys_P2 = torch.tensor([row_key(seed, position) for position in positions], dtype=torch.int32, device=device)
    tokens_V = torch.arange(vocab_size, dtype=torch.int32, device=device) * signed32(TOKEN_STEP)
    bits = mix32_(mix32_(tokens_V + keys_P2[:, :1]) ^ keys_P2[:, 1:])
    uniform = bits.double().add_(2.0**31 + 0.5).mul_(2.0**-32)
    return uniform.log_().neg_().log_().neg_().float()


class KeyedNoise:
    """Noise rows of one request, each computed once and cached while it may be needed again.

    All nodes at one depth use the same row, in the drafter and in the target.
    """

    def __init__(self, seed: int, vocab_size: int, *, device: str = "cpu") -> None:
        self.seed = seed
        self._vocab_size = vocab_size
        self._device = device
        self._rows_per_block = max(1, min(MAX_ROWS_PER_BLOCK, ELEMENTS_PER_BLOCK // vocab_size))
        self._blocks: dict[int, Tensor] = {}
        self._keys: dict[int, tuple[int, int, int]] = {}

    def at(self, positions: Sequence[int], *, first_token: int = 0) -> "KeyedRows":
        """The noise of the tokens at `positions` from `first_token` on, computed on demand."""
        return KeyedRows(self, positions, first_token)

    def key(self, position: int) -> tuple[int, int, int]:
        """A position's key as its low half, its high half, and 1."""
        key = self._keys.get(position)
        if key is None:
            key = self._keys[position] = (*row_key(self.seed, position), 1)
        return key

    def of(self, positions: Sequence[int], token_ids_PN: NDArray[np.int32]) -> NDArray[np.float64]:
        """[P, N] noise of a few tokens at each position: the values of `rows` before rounding to float32."""
        keys_P3 = np.array([self.key(position) for position in positions], np.int32).view(np.uint32)
        tokens_PN = token_ids_PN.view(np.uint32) * np.uint32(TOKEN_STEP)
        bits_PN = mixed32(mixed32(tokens_PN + keys_P3[:, :1]) ^ keys_P3[:, 1:2]).view(np.int32)
        uniform_PN = (bits_PN.astype(np.float64) + (2.0**31 + 0.5)) * 2.0**-32
        return -np.log(-np.log(uniform_PN))

    def rows(self, positions: Sequence[int]) -> Tensor:
        """[P, V] noise for the tokens at `positions`."""
        size = self._rows_per_block
        first = min(positions) // size
        last = max(positions) // size
        joined = self._block(first) if first == last else torch.cat([self._block(i) for i in range(first, last + 1)])
        places = [position - first * size for position in positions]
        if len(places) == 1:
            return joined[places[0] : places[0] + 1]
        return joined.index_select(0, torch.tensor(places, device=joined.device))

    def _block(self, number: int) -> Tensor:
        block = self._blocks.get(number)
        if block is None:
            start = number * self._rows_per_block
            positions = range(start, start + self._rows_per_block)
            block = self._blocks[number] = gumbel_rows(self.seed, positions, self._vocab_size, device=self._device)
            while len(self._blocks) * self._rows_per_block > MAX_ROWS_KEPT:
                del self._blocks[next(iter(self._blocks))]
        return block


class KeyedRows:
    """The noise of some rows: as keys, for kernels that compute the noise when they add it, or as a tensor.

    Column 0 belongs to token `first_token`.
    """

    def __init__(self, noise: KeyedNoise, positions: Sequence[int], first_token: int) -> None:
        self._noise = noise
        self.positions = positions
        self._first_token = first_token

    @property
    def seed_mix(self) -> int:
        """See `signed_mix`."""
        return signed_mix(self._noise.seed)

    @property
    def keys(self) -> NDArray[np.int32]:
        """[P, 3]: each row's key as its low half, its high half, and 1."""
        keys_P3 = np.array([self._noise.key(position) for position in self.positions], np.int32)
        if self._first_token:  # kernels add the column number times TOKEN_STEP to the key
            keys_P3[:, 0] += np.int32(signed32(self._first_token * TOKEN_STEP))
        return keys_P3

    @property
    def tensor(self) -> Tensor:
        """[P, V - first_token]"""
        return self._noise.rows(self.positions)[:, self._first_token :]
