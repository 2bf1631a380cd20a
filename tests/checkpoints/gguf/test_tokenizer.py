"""The tokenizer of a GGUF file gives the ids and texts of the tokenizer.json that the file was made from."""

import json
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split

from forerun.checkpoints.gguf.header import read_gguf
from forerun.checkpoints.gguf.pre_tokenizers import SPLITTINGS
from forerun.checkpoints.gguf.tokenizer import PREFIX, merges_by_score, read_tokenizer
from forerun.checkpoints.huggingface.tokenizer import read_tokenizer as read_folder
from forerun.core.errors import CheckpointError
from forerun.text.tokenizer import Tokenizer
from tests.checkpoints.gguf.texts import TEXTS
from tests.checkpoints.gguf.vocabulary_metadata import gguf_of, metadata_of
from tests.text.tiny_tokenizers import CONTROL_TOKENS, TEXT, write_byte_level, write_llama

# What stands in tokenizer.json of Llama 3 and of Qwen 2, written out.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
WITH_GPT2 = ByteLevel(add_prefix_space=False, use_regex=True)
PUBLISHED_SPLITTINGS: Final = {
    "gpt-2": WITH_GPT2,
    "smollm": pre_tokenizers.Sequence([Digits(individual_digits=True), WITH_GPT2]),
    "llama-bpe": pre_tokenizers.Sequence([Split(Regex(LLAMA3), "isolated"), BYTES]),
    "qwen2": pre_tokenizers.Sequence([Split(Regex(QWEN2), "isolated"), BYTES]),
    "deepseek-coder": pre_tokenizers.Sequence(
        [
            Split("\n", "isolated"),
            Split("\r", "isolated"),
            Split(Regex(r"\s?\p{L}+"), "isolated"),
            Split(Regex(r"\s?\p{P}+"), "isolated"),
            Split(Regex("[一-龥ࠀ-一가-퟿]+"), "isolated"),
            Digits(individual_digits=True),
            BYTES,
        ]
    ),
}


def write_trained(folder: Path, splitting: pre_tokenizers.PreTokenizer) -> Path:
    """A byte-level tokenizer of a few hundred tokens, trained on the very texts that tests encode."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = splitting
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False, min_frequency=1)
    backend.train_from_iterator([*TEXTS, TEXT], trainer)
    backend.add_special_tokens(list(CONTROL_TOKENS))
    backend.add_tokens([tokenizers.AddedToken("<think>", normalized=False)])
    path = folder / "tokenizer.json"
    backend.save(str(path))
    return path


def require_same(ours: Tokenizer, theirs: tokenizers.Tokenizer, texts: tuple[str, ...] = TEXTS) -> None:
    for text in texts:
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("pre", PUBLISHED_SPLITTINGS)
def test_byte_level_tokenizers_give_the_ids_of_their_own_files(tmp_path: Path, pre: str) -> None:
    file = write_trained(tmp_path, PUBLISHED_SPLITTINGS[pre])
    theirs = tokenizers.Tokenizer.from_file(str(file))
    texts = tuple(text for text in TEXTS if "\u0301" not in text)  # which Qwen's normalizer composes, tested below
    require_same(read_tokenizer(gguf_of(metadata_of(file, pre=pre))), theirs, texts)


@pytest.mark.parametrize(("pre", "text", "pieces"), [
    ("default", "12345 a,b", ["123", "45", "Ġa", ",", "b"]),
    ("llama-bpe", "12345 a,b I'LL", ["123", "45", "Ġa", ",b", "ĠI", "'LL"]),
    ("smaug-bpe", "1234\n\n", ["123", "4", "ĊĊ"]),
    ("qwen2", "123 I'LL  x", ["1", "2", "3", "ĠI", "'LL", "Ġ", "Ġx"]),
    ("qwen35", "12 a\u0331b I'LL", ["1", "2", "Ġa\u00cc\u00b1b", "ĠI", "'LL"]),
    ("lfm2", "12345 a,b I'LL", ["123", "45", "Ġa", ",b", "ĠI", "'LL"]),
    ("smollm", "123 I'LL", ["1", "2", "3", "ĠI", "'", "LL"]),
    ("gpt-2", "123 don't", ["123", "Ġdon", "'t"]),
    ("deepseek-llm", "Ab, c1\n\nd", ["Ab", ",", "Ġc", "1", "Ċ", "Ċ", "d"]),
    ("deepseek-coder", "Ab, c12\n", ["Ab", ",", "Ġc", "1", "2", "Ċ"]),
    ("tekken", "camelCase HTTPServer 12", ["camel", "Case", "ĠHTTPServer", "Ġ", "1", "2"]),
    ("gpt-4o", "camelCase HTTPServer's 1234", ["camel", "Case", "ĠHTTPServer's", "Ġ", "123", "4"]),
    ("seed-coder", "12 !!\nx", ["1", "2", "Ġ!!", "Ċ", "x"]),
])  # fmt: skip
def test_a_name_of_a_splitting_stands_for_the_pieces_of_these_models(pre: str, text: str, pieces: list[str]) -> None:
    assert [piece for piece, _ in SPLITTINGS[pre].pre_tokenizer().pre_tokenize_str(text)] == pieces


def test_spaces_at_the_end_of_a_line_are_the_same_pieces_in_linear_time() -> None:
    ours = pre_tokenizers.Split(Regex(r"(?<!\s)\s+$"), "isolated")
    published = pre_tokenizers.Split(Regex(r"\s+$"), "isolated")
    assert r"(?<!\s)\s+$" in SPLITTINGS["deepseek-llm"].expressions
    for letters in product(" \n\tx", repeat=6):
        text = "".join(letters)
        assert ours.pre_tokenize_str(text) == published.pre_tokenize_str(text), repr(text)


def test_a_whole_piece_is_its_token_where_merges_do_not_count(tmp_path: Path) -> None:
    metadata = metadata_of(write_trained(tmp_path, PUBLISHED_SPLITTINGS["llama-bpe"]), pre="llama-bpe")
    tokens = metadata["tokenizer.ggml.tokens"]
    more = {
        "tokenizer.ggml.tokens": (*tokens, "zqzq"),
        "tokenizer.ggml.token_type": (*metadata["tokenizer.ggml.token_type"], 1),
    }
    assert read_tokenizer(gguf_of(metadata | more)).encode("zqzq") == [len(tokens)]
    other = metadata | more | {"tokenizer.ggml.pre": "smaug-bpe"}
    assert len(read_tokenizer(gguf_of(other)).encode("zqzq")) == 4


@pytest.mark.parametrize("adds_space", [True, False])
def test_sentencepiece_tokenizers_give_the_ids_of_their_own_files(tmp_path: Path, adds_space: bool) -> None:
    folder = write_llama(tmp_path)
    metadata = metadata_of(folder / "tokenizer.json", pre=None, add_space_prefix=adds_space, unknown_token_id=0)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    if not adds_space:
        theirs.normalizer = tokenizers.normalizers.Replace(" ", "▁")
        theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    require_same(read_tokenizer(gguf_of(metadata)), theirs, (*TEXTS, "the fox and the fox</s> the", " the"))


def test_pieces_with_listed_merges_give_the_ids_of_their_own_file(tmp_path: Path) -> None:
    """Gemma 4's kind: the merges stand in the file, in this order whatever the scores; no space before a text."""
    folder = write_llama(tmp_path)
    file = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in file["model"]["merges"]]
    metadata = metadata_of(
        folder / "tokenizer.json", pre=None, unknown_token_id=0, model="gemma4", merges=tuple(merges)
    )
    metadata["tokenizer.ggml.scores"] = (0.0,) * len(metadata["tokenizer.ggml.tokens"])
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    require_same(read_tokenizer(gguf_of(metadata)), theirs, (*TEXTS, "the fox and the fox</s> the", " the", "a\n\nb"))
    with pytest.raises(CheckpointError, match="merges is missing"):
        read_tokenizer(gguf_of({key: value for key, value in metadata.items() if not key.endswith("merges")}))


def test_pieces_merge_best_score_first_and_into_one_piece_by_the_lower_ids() -> None:
    vocabulary = {piece: id_ for id_, piece in enumerate(("aba", "ba", "ab", "b", "a"))}
    keys = gguf_of({}).section(PREFIX)
    merges = merges_by_score(keys, vocabulary, scores=(-3.0, -2.0, -1.0, 0.0, 0.0))
    assert merges == [("a", "b"), ("b", "a"), ("ab", "a"), ("a", "ba")]


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        ({}, [7]),
        ({"add_bos_token": True, "bos_token_id": 3}, [3, 7]),
        ({"add_bos_token": False, "bos_token_id": 3}, [7]),
        ({"add_eos_token": True, "eos_token_id": 4}, [7, 4]),
        ({"add_bos_token": True, "add_eos_token": True, "bos_token_id": 3, "eos_token_id": 4}, [3, 7, 4]),
        ({"pre": "llama-bpe", "bos_token_id": 3}, [3, 7]),
        ({"pre": "llama-bpe", "bos_token_id": 3, "add_bos_token": False}, [7]),
    ],
)
def test_what_begins_and_ends_a_text_is_what_the_file_says_else_the_models_kind(
    keys: dict[str, object], ids: list[int]
) -> None:
    metadata = tiny() | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    assert read_tokenizer(gguf_of(metadata)).encode("ab") == ids


def test_the_template_is_the_default_one_and_knows_the_special_tokens() -> None:
    metadata = tiny() | {"tokenizer.ggml.bos_token_id": 3, "tokenizer.ggml.eos_token_id": 4}
    own = {"tokenizer.chat_template": "{{ bos_token }}b{{ eos_token }}", "tokenizer.chat_template.tool_use": "a"}
    message = [{"role": "user", "content": "x"}]
    assert read_tokenizer(gguf_of(metadata | own)).apply_chat_template(message) == [3, 1, 4]
    named = {"tokenizer.chat_template.default": "b", "tokenizer.chat_template.tool_use": "a"}
    assert read_tokenizer(gguf_of(metadata | named)).apply_chat_template(message) == [1]
    assert not read_tokenizer(gguf_of(metadata)).has_chat_template
    with pytest.raises(CheckpointError, match=r"chat_template.tool_use.*no tokenizer.chat_template, the one to use"):
        read_tokenizer(gguf_of(metadata | {"tokenizer.chat_template.tool_use": "a"}))


def test_a_whole_tokenizer_json_in_the_file_is_used(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    whole = (folder / "tokenizer.json").read_text(encoding="utf-8")
    ours = read_tokenizer(gguf_of(tiny() | {"tokenizer.huggingface.json": whole}))
    assert ours.vocabulary() == read_folder(folder).vocabulary()
    with pytest.raises(CheckpointError, match=r"tokenizer.huggingface.json in model.gguf cannot be read by tokenizers"):
        read_tokenizer(gguf_of(tiny() | {"tokenizer.huggingface.json": "{}"}))


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("model", None, "is missing"),
        ("model", "bert", "is 'bert', but must be gpt2, llama or gemma4"),
        ("pre", "no-such", r"is 'no-such', but must be one of default, llama-bpe, .*smollm"),
        ("pre", 3, "is 3, but must be a string"),
        ("tokens", None, "is missing"),
        ("tokens", "a", "is 'a', but must be a list of texts"),
        ("tokens", (1, 2), "but must be a list of texts"),
        ("tokens", ("",) * 8, "lists no token"),
        ("tokens", ("a", "b", "c", "<s>", "</s>", "<t>", "[PAD6]", "a"), "lists 'a' twice, as ids 0 and 7"),
        ("merges", None, "is missing"),
        ("merges", ("a b c",), "an entry that is not two tokens"),
        ("merges", ("ab",), "an entry that is not two tokens"),
        ("merges", (" b",), "an entry that is not two tokens"),
        ("merges", ("a ",), "an entry that is not two tokens"),
        ("merges", ("a z",), "does not fit the tokens"),
        ("merges", ("b c",), "does not fit the tokens"),
        ("token_type", (1, 1), "has 2 numbers, but must have 8"),
        ("token_type", ("1",) * 8, "but must be a list of numbers"),
        ("bos_token_id", 8, "is 8, but must be the id of one of 8 tokens"),
        ("eos_token_id", -1, "is -1, but must be"),
        ("padding_token_id", "0", "is '0', but must be"),
        ("unknown_token_id", True, "is True, but must be"),
        ("add_bos_token", 1, "is 1, but must be true or false"),
        ("add_bos_token", True, "bos_token_id is missing, and add_bos_token asks for it"),
    ],
)
def test_a_damaged_vocabulary_is_refused_by_its_key(key: str, value: object, fault: str) -> None:
    metadata = tiny() | {f"tokenizer.ggml.{key}": value}
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(CheckpointError, match=f"^model.gguf: tokenizer.ggml..*{fault}.*fetch the file again"):
        read_tokenizer(gguf_of(metadata))


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("scores", None, "is missing"),
        ("scores", (0.0,), "has 1 numbers, but must have"),
        ("scores", float("nan"), "holds a value that is not a number"),
        ("tokens", "long", "a token of more than 256 characters"),
        ("tokens", "many", "a token of more than 256 characters, or more than 2097152 in all"),
        ("tokens", "pairs", "makes more than 524288 merges"),
        ("add_space_prefix", "yes", "is 'yes', but must be true or false"),
    ],
)
def test_damaged_pieces_are_refused_by_their_key_and_soon(tmp_path: Path, key: str, value: object, fault: str) -> None:
    metadata: dict[str, Any] = metadata_of(write_llama(tmp_path) / "tokenizer.json", pre=None)
    tokens: tuple[str, ...] = metadata["tokenizer.ggml.tokens"]
    hostile = {
        "long": lambda: ("x" * 300,),
        "many": lambda: [f"{place:0200}" for place in range(11_000)],
        "pairs": lambda: [f"{place:b}".rjust(length, "0") for length in range(1, 17) for place in range(2**length)],
    }
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    elif isinstance(value, float):
        metadata["tokenizer.ggml.scores"] = (value,) * len(tokens)
    elif value in hostile:
        tokens = tuple(dict.fromkeys((*tokens, *hostile[value]())))
        metadata |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": (0.0,) * len(tokens)}
        metadata["tokenizer.ggml.token_type"] = (1,) * len(tokens)
    else:
        metadata[f"tokenizer.ggml.{key}"] = value
    start = perf_counter()
    with pytest.raises(CheckpointError, match=f"^model.gguf: tokenizer.ggml..*{fault}.*fetch the file again"):
        read_tokenizer(gguf_of(metadata))
    assert perf_counter() - start < 5.0


def test_a_file_written_by_the_formats_own_package_is_read_whole(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    folder = write_byte_level(tmp_path)
    metadata = metadata_of(folder / "tokenizer.json", pre="gpt-2", eos_token_id=302)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(metadata["tokenizer.ggml.tokens"]))
    writer.add_token_types(list(metadata["tokenizer.ggml.token_type"]))
    writer.add_token_merges(list(metadata["tokenizer.ggml.merges"]))
    writer.add_eos_token_id(302)
    writer.add_add_bos_token(False)
    writer.add_chat_template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    ours = read_tokenizer(read_gguf(tmp_path / "model.gguf"))
    theirs = read_folder(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
    message = [{"role": "user", "content": "the fox"}]
    assert ours.apply_chat_template(message) == theirs.apply_chat_template(message)


def tiny() -> dict[str, Any]:
    """Eight tokens: three letters and a merge, two control tokens, a user-defined one, one that fills the table up."""
    tokens = ("a", "b", "c", "<s>", "</s>", "<t>", "[PAD6]", "ab")
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": ("a b",)}
    values["token_type"] = (1, 1, 1, 3, 3, 4, 5, 1)
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}
