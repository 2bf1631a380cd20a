"""Compute the merges of sentencepiece's BPE, which its files omit: two pieces that join to a piece may be merged."""

from collections.abc import Mapping, Sequence
from math import isnan
from operator import itemgetter
from typing import Final

from forerun.checkpoints.gguf.vocabulary_keys import VocabularyKeys

# Characters of all tokens, each a possible split point: the 32,000 tokens of Llama 2 have 0.2 million.
MAX_LETTERS: Final = 2**21
MAX_TOKEN_LETTERS: Final = 256  # tokens of Llama 2 have up to 16 characters, control tokens up to three times as many
MAX_MERGES: Final = 2**19  # of 200 bytes each while they are sorted; Llama 2 has 61,000


def merges_by_score(
    keys: VocabularyKeys, vocabulary: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """All merges in order of priority: merges into the token with the best score come first.

    Among merges into the same token, those whose parts have lower ids come first. transformers' converter wrote the
    published files of such models in this order, so texts get the same tokens as with the model's own tokenizer.json.
    """
    if max(map(len, vocabulary)) > MAX_TOKEN_LETTERS or sum(map(len, vocabulary)) > MAX_LETTERS:
        raise keys.wrong(
            "tokens", f"has a token of more than {MAX_TOKEN_LETTERS} characters, or more than {MAX_LETTERS} in all"
        )
    if any(map(isnan, scores)):
        raise keys.wrong("scores", "holds a value that is not a number")
    own = {token: token for token in vocabulary}  # parts reuse the tokens' own string objects to save memory
    merges: list[tuple[float, str, str]] = []
    for token, id_ in vocabulary.items():
        parts = ((own.get(token[:place]), own.get(token[place:])) for place in range(1, len(token)))
        pairs = [(left, right) for left, right in parts if left is not None and right is not None]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(scores[id_], left, right) for left, right in pairs]
        if len(merges) > MAX_MERGES:
            raise keys.wrong("tokens", f"makes more than {MAX_MERGES} merges, more than any vocabulary")
    merges.sort(key=itemgetter(0), reverse=True)
    return [(left, right) for _, left, right in merges]
