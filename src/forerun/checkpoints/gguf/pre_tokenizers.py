r"""The regular expressions that split a text before byte-level BPE, by the name in a GGUF file's `tokenizer.ggml.pre`.

A name stands for expressions that are applied one after another, each to the pieces left by the previous one: matches,
and the texts between matches, become separate pieces.

Source: the names are those of llama.cpp's src/llama-vocab.cpp that models of the architectures llama, qwen2 and qwen3
have. The expressions are those of the models' own tokenizer.json, from which llama.cpp's are made, and GPT-2's is that
of https://github.com/openai/gpt-2/blob/master/src/encoder.py; only "default" is llama.cpp's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers

from forerun.checkpoints.huggingface.split_patterns import GPT2, LLAMA3, O200K, QWEN2, QWEN35, SEED_CODER, TEKKEN

# Cased letters, except those of some scripts, as DeepSeek's tokenizer.json lists them.
DEEPSEEK_LETTERS: Final = (
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}"
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}"
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}"
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}"
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}"
    r"\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
DEEPSEEK_SIGNS: Final = r"!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}"
DEEPSEEK_EAST_ASIAN: Final = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """The pre-tokenization of a name.

    Args:
        expressions: in Oniguruma's notation, which tokenizers uses.
        composes: whether the text is first normalised to Unicode's NFC.
        ignore_merges: whether a piece that is a token becomes that token regardless of the merges.
        adds_bos: whether a text begins with the BOS token, unless the file says otherwise.
    """

    expressions: tuple[str, ...]
    composes: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The pre-tokenizer for tokenizers, followed by the byte-level step."""
        splits = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in self.expressions]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


OF_LLAMA3: Final = Splitting(expressions=(LLAMA3,), ignore_merges=True, adds_bos=True)
SPLITTINGS: Final[Mapping[str, Splitting]] = {
    "default": Splitting(expressions=(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "midm-2.0", "lfm2"), OF_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), Splitting(expressions=(LLAMA3,))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), Splitting(expressions=(QWEN2,), composes=True)),
    "qwen35": Splitting(expressions=(QWEN35,), composes=True),
    **dict.fromkeys(("smollm", "starcoder", "refact", "minerva-7b"), Splitting(expressions=(r"\p{N}", GPT2))),
    **dict.fromkeys(("gpt-2", "a.x-4.0", "gigachat", "mellum", "trillion"), Splitting(expressions=(GPT2,))),
    "deepseek-llm": Splitting(
        expressions=(
            r"[\r\n]",
            rf"\s?[{DEEPSEEK_LETTERS}]+",
            rf"\s?[{DEEPSEEK_SIGNS}]+",
            r"(?<!\s)\s+$",
            DEEPSEEK_EAST_ASIAN,
            r"\p{N}",
        )
    ),
    "deepseek-coder": Splitting(expressions=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_EAST_ASIAN, r"\p{N}")),
    "tekken": Splitting(expressions=(TEKKEN,), ignore_merges=True, adds_bos=True),
    "gpt-4o": Splitting(expressions=(O200K,)),
    "seed-coder": Splitting(expressions=(SEED_CODER,)),
}
