"""Read the tokenizer and chat template from the metadata of a GGUF file; ids equal those of the model's own tokenizer.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section Tokenizer, and for unspecified details
llama.cpp's src/llama-vocab.cpp.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from operator import itemgetter
from typing import Annotated, Any, Final

import tokenizers
from msgspec import Meta
from tokenizers import AddedToken, decoders, models, normalizers, processors

from forerun.checkpoints.end_tokens import END_TEXTS
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.pre_tokenizers import SPLITTINGS, Splitting
from forerun.checkpoints.huggingface.tokenizer import parse_backend
from forerun.core.errors import CheckpointError
from forerun.core.json_file import REQUIRED, JsonFile, short
from forerun.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

PREFIX: Final = "tokenizer.ggml."
WHOLE_FILE_KEY: Final = "tokenizer.huggingface.json"
TEMPLATE_KEY: Final = "tokenizer.chat_template"
SPACE: Final = "▁"  # sentencepiece's character for a space
NORMAL = 1  # types of tokens, as ggml numbers them; 6 is a byte
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
# Names used in templates, and the keys that hold these tokens' ids; "seperator" is ggml's spelling.
SPECIAL_KEYS: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
# Characters of all tokens, each a possible split point: the 32,000 tokens of Llama 2 have 0.2 million.
MAX_LETTERS: Final = 2**21
MAX_TOKEN_LETTERS: Final = 256  # tokens of Llama 2 have up to 16 characters, control tokens up to three times as many
MAX_MERGES: Final = 2**19  # of 200 bytes each while they are sorted; Llama 2 has 61,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The tokens of a file and their uses.

    Args:
        tokens: by id.
        types: by id, as ggml numbers them.
        special_ids: ids of special tokens, by their names in templates.
    """

    tokens: Sequence[str]
    types: Sequence[float]
    special_ids: Mapping[str, int]

    @classmethod
    def read(cls, keys: JsonFile) -> "Pieces":
        tokens = read_texts(keys, "tokens")
        num_tokens = len(tokens)
        token_id = Annotated[int, Meta(ge=0, lt=max(1, num_tokens))]
        special_ids = {
            name: keys.typed(key, token_id, f"the id of one of {num_tokens} tokens")
            for name, key in SPECIAL_KEYS.items()
            if keys.has(key)
        }
        types = list(read_numbers(keys, "token_type", num_tokens, [NORMAL] * num_tokens))
        control = set() if keys.has("token_type") else set(special_ids.values())
        # End tokens that a converter marked as text: llama.cpp overrides their types too.
        control |= {id_ for id_, text in enumerate(tokens) if text in END_TEXTS and types[id_] != UNUSED}
        for id_ in control:
            types[id_] = CONTROL
        return cls(tokens=tokens, types=types, special_ids=special_ids)

    def vocabulary(self, keys: JsonFile, *, has_twins: bool = False) -> dict[str, int]:
        """Ids by token, without padding tokens such as [PAD151665].

        Args:
            has_twins: an ordinary token may be listed twice, and has the last one's id.
        """
        used = [id_ for id_, kind in enumerate(self.types) if kind != UNUSED and self.tokens[id_]]
        vocabulary = {self.tokens[id_]: id_ for id_ in used}
        if not vocabulary:
            raise damaged(keys, "tokens", "lists no token")
        for twice, other in self.twins(vocabulary).items():
            if not (has_twins and self.types[twice] == self.types[other] == NORMAL):
                raise damaged(keys, "tokens", f"lists {short(self.tokens[twice])} twice, as ids {twice} and {other}")
        return vocabulary

    def twins(self, vocabulary: Mapping[str, int]) -> dict[int, int]:
        """Ids whose token has another id in the vocabulary, and that id."""
        found = ((id_, vocabulary.get(token, id_)) for id_, token in enumerate(self.tokens))
        return {id_: other for id_, other in found if id_ != other and self.types[id_] != UNUSED}

    def added(self) -> list[AddedToken]:
        """Tokens that are matched in a text before all others; special ones are omitted from decoded text."""
        return [
            AddedToken(self.tokens[id_], special=kind != USER_DEFINED, normalized=False)
            for id_, kind in enumerate(self.types)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and self.tokens[id_]
        ]

    def special_tokens(self) -> dict[str, str]:
        return {name: self.tokens[id_] for name, id_ in self.special_ids.items()}


def read_texts(keys: JsonFile, key: str) -> tuple[str, ...]:
    texts: tuple[str, ...] = keys.typed(key, tuple[str, ...], "a list of texts")
    return texts


def read_numbers(keys: JsonFile, key: str, count: int, default: object = REQUIRED) -> tuple[float, ...]:
    """A list of `count` numbers, one for each token."""
    numbers: tuple[float, ...] = keys.typed(key, tuple[float, ...], "a list of numbers", default)
    if len(numbers) != count:
        raise damaged(keys, key, f"has {len(numbers)} numbers, but must have {count}, one for each token")
    return numbers


def damaged(keys: JsonFile, key: str, fault: str) -> CheckpointError:
    return CheckpointError(f"{keys.path}: {keys.prefix}{key} {fault}: fetch the file again, or another one")


def read_tokenizer(file: GgufFile) -> Tokenizer:
    """The tokenizer of a file, with its chat template.

    Raises:
        CheckpointError: a key is missing, damaged or unsupported; the message names it.
    """
    keys = file.section(PREFIX)
    pieces = Pieces.read(keys)
    backend, foreign = _read_backend(file, keys, pieces)
    twins = pieces.twins(backend.get_vocab())
    return Tokenizer(backend, read_chat_template(file), pieces.special_tokens(), foreign, twins)


def read_chat_template(file: GgufFile) -> str | None:
    """The source of the default template; None if there is no template."""
    if TEMPLATE_KEY not in file.metadata:
        names = [key for key in file.metadata if key.startswith(f"{TEMPLATE_KEY}.")]
        if names and f"{TEMPLATE_KEY}.default" not in names:
            raise CheckpointError(
                f"{file.path} has the chat templates {short(names)}, but no {TEMPLATE_KEY}, the one to use: fetch a "
                "newer file of the model"
            )
        return _text_under(f"{TEMPLATE_KEY}.default", file) if names else None
    return _text_under(TEMPLATE_KEY, file)


def _text_under(key: str, file: GgufFile) -> str:
    value = file.metadata[key]
    if not isinstance(value, str):
        raise CheckpointError(f"{file.path}: {key} is {short(value)}, but must be a text: fetch the file again")
    return value


def _read_backend(file: GgufFile, keys: JsonFile, pieces: Pieces) -> tuple[tokenizers.Tokenizer, Mapping[str, object]]:
    """The tokenizer without the foreign parts of a whole tokenizer.json, and these parts."""
    if WHOLE_FILE_KEY in file.metadata:
        whole = _text_under(WHOLE_FILE_KEY, file)
        return parse_backend(whole.encode(), f"{WHOLE_FILE_KEY} in {keys.path}")
    match keys.text("model"):
        case "gpt2":
            backend, adds_bos = _byte_level(keys, pieces)
        case "llama":
            vocabulary = pieces.vocabulary(keys)
            scores = read_numbers(keys, "scores", len(pieces.tokens))
            merges = merges_by_score(keys, vocabulary, scores)
            backend = _sentencepiece(keys, pieces, vocabulary, merges, adds_space=True)
            adds_bos = True
        case "gemma4":
            vocabulary = pieces.vocabulary(keys, has_twins=True)
            backend = _sentencepiece(keys, pieces, vocabulary, _merges(keys), adds_space=False)
            adds_bos = True
        case other:
            raise damaged(keys, "model", f"is {short(other)}, but must be gpt2, llama or gemma4, the supported kinds")
    backend.add_tokens(pieces.added())
    _surround(backend, keys, pieces, adds_bos=adds_bos)
    return backend, {}


def _byte_level(keys: JsonFile, pieces: Pieces) -> tuple[tokenizers.Tokenizer, bool]:
    """Byte-level BPE, and whether its texts begin with a BOS token."""
    splitting = _read_splitting(keys)
    merges = _merges(keys)
    vocabulary = pieces.vocabulary(keys)
    backend = tokenizers.Tokenizer(_bpe(keys, vocabulary, merges, ignore_merges=splitting.ignore_merges))
    if splitting.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitting.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, splitting.adds_bos


def _merges(keys: JsonFile) -> list[tuple[str, str]]:
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in read_texts(keys, "merges"))]
    if any(not left or not right or " " in right for left, right in merges):
        raise damaged(keys, "merges", "holds an entry that is not two tokens with a space between them")
    return merges


def merges_by_score(keys: JsonFile, vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges of sentencepiece's BPE, which its files omit: two pieces that join to a piece may be merged.

    Merges into the token with the best score come first.

    Among merges into the same token, those whose parts have lower ids come first. transformers' converter wrote the
    published files of such models in this order, so texts get the same tokens as with the model's own tokenizer.json.
    """
    if max(map(len, vocabulary)) > MAX_TOKEN_LETTERS or sum(map(len, vocabulary)) > MAX_LETTERS:
        raise damaged(
            keys,
            "tokens",
            f"has a token of more than {MAX_TOKEN_LETTERS} characters, or more than {MAX_LETTERS} in all",
        )
    if any(map(isnan, scores)):
        raise damaged(keys, "scores", "holds a value that is not a number")
    own = {token: token for token in vocabulary}  # parts reuse the tokens' own string objects to save memory
    merges: list[tuple[float, str, str]] = []
    for token, id_ in vocabulary.items():
        parts = ((own.get(token[:place]), own.get(token[place:])) for place in range(1, len(token)))
        pairs = [(left, right) for left, right in parts if left is not None and right is not None]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(scores[id_], left, right) for left, right in pairs]
        if len(merges) > MAX_MERGES:
            raise damaged(keys, "tokens", f"makes more than {MAX_MERGES} merges, more than any vocabulary")
    merges.sort(key=itemgetter(0), reverse=True)
    return [(left, right) for _, left, right in merges]


def _bpe(keys: JsonFile, vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocabulary, merges, **options)
    except Exception as error:  # tokenizers raises a bare Exception if a merge's part is not a token
        raise damaged(keys, "merges", f"does not fit the tokens ({short(str(error))})") from error


def _read_splitting(keys: JsonFile) -> Splitting:
    if not keys.has("pre"):
        logger.warning(
            "%s does not say how texts are split before merging (tokenizer.ggml.pre), like files from before May 2024: "
            "llama.cpp's default is used, so some texts get other tokens than the model was trained on",
            keys.path,
        )
        return SPLITTINGS["default"]
    name = keys.text("pre")
    if name not in SPLITTINGS:
        raise damaged(keys, "pre", f"is {short(name)}, but must be one of {', '.join(SPLITTINGS)}")
    return SPLITTINGS[name]


def _sentencepiece(
    keys: JsonFile, pieces: Pieces, vocabulary: dict[str, int], merges: list[tuple[str, str]], *, adds_space: bool
) -> tokenizers.Tokenizer:
    """sentencepiece's BPE: merges in this order, and byte tokens for unknown characters.

    A space is added before every text, if the kind or the file requires it; also after control tokens, as in llama.cpp
    and in most of these models' tokenizer.json. transformers 5 omits it after control tokens if the class is
    LlamaTokenizer and `legacy` is not set; a GGUF file does not record that.
    """
    unknown = pieces.special_tokens().get("unk_token", pieces.tokens[0])
    model = _bpe(keys, vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    adds_space = keys.flag("add_space_prefix", adds_space)
    prepend = [normalizers.Prepend(SPACE)] if adds_space else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    decoding = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decoding, *([decoders.Strip(" ", 1, 0)] if adds_space else [])])
    return backend


def _surround(backend: tokenizers.Tokenizer, keys: JsonFile, pieces: Pieces, *, adds_bos: bool) -> None:
    """Add the BOS and EOS tokens to texts if the file specifies them."""
    form = ["$A"]
    ids = {}
    for name, default, place in (("bos", adds_bos, 0), ("eos", False, 2)):
        if not keys.flag(f"add_{name}_token", default):
            continue
        id_ = pieces.special_ids.get(f"{name}_token")
        if id_ is None and not keys.has(f"add_{name}_token"):
            continue
        if id_ is None:
            raise damaged(keys, f"{name}_token_id", f"is missing, and add_{name}_token asks for it")
        form.insert(place, pieces.tokens[id_])
        ids[pieces.tokens[id_]] = id_
    if ids:
        backend.post_processor = processors.TemplateProcessing(single=form, special_tokens=list(ids.items()))
