r"""The regular expressions by which the families' tokenizers split a text before byte-level BPE.

Source: each family's tokenizer.json, in Oniguruma's notation. All take linear time on any text.
"""

from typing import Final

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS: Final = r" ?[^\s\p{L}\p{N}]+"
SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
LOWER: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3: Final = rf"{CONTRACTIONS}|{WORD}|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{SPACES}"
QWEN2: Final = rf"{CONTRACTIONS}|{WORD}|\p{{N}}|{SIGNS}[\r\n]*|{SPACES}"
QWEN35: Final = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
SEED_CODER: Final = rf"{CONTRACTIONS}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACES}"
O200K: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{CONTRACTIONS}?|"
    rf"\p{{N}}{{1,3}}|{SIGNS}[\r\n/]*|{SPACES}"
)
TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*|\p{{N}}|{SIGNS}[\r\n/]*|"
    rf"{SPACES}"
)
