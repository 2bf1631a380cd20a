"""The target reads texts that it did not write; its likeliest next tokens after each of their tokens are stored.

Plain texts come in pieces, conversations from JSON lines.

Legend: B texts at once, T tokens of the longest, K scores kept for each row.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.text.message import plain_message
from forerun.text.tokenizer import Tokenizer
from forerun_lab.distill.network import Network
from forerun_lab.distill.writer import NUM_KEPT, WrittenText, top_scores

PIECE: Final = 384  # tokens of a piece
GivenText: TypeAlias = tuple[list[int], int]  # token ids, and how many of them are the opening


def read_given(path: Path, tokenizer: Tokenizer, stop_ids: Sequence[int], longest: int) -> list[GivenText]:
    """The texts of a file. Each line of a .jsonl file is a conversation, `{"messages": [{"role": ..., "content": ...},
    ...]}`, and only its last message is learnt from. The text of any other file is split into pieces.

    Args:
        longest: the most tokens that the target can read; longer conversations are left out.

    Raises:
        ConfigError: the file cannot be read, or a line is not such a conversation.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error}): give a UTF-8 file") from error
    if path.suffix == ".jsonl":
        return [
            found
            for number, line in enumerate(text.split("\n"), 1)  # a text may hold other line ends
            if line.strip()
            for found in _conversation(f"{path}, line {number}", line, tokenizer, stop_ids)
            if len(found[0]) <= longest
        ]
    ids = tokenizer.encode(text)
    size = min(PIECE, longest)
    return [(ids[start : start + size], 0) for start in range(0, len(ids), size)]


def _conversation(place: str, line: str, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> Iterator[GivenText]:
    try:
        messages = json.loads(line)["messages"]
        *before, last = messages
        answer = plain_message(last)["content"]
        role = last["role"]
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f'{place} is not a conversation ({error!r}); a line such as {{"messages": [{{"role": "user", '
            '"content": "Hi"}, {"role": "assistant", "content": "Hello!"}]} is needed'
        ) from None
    if role != "assistant" or not before:
        raise ConfigError(f"{place}: the last message is a {role!r}'s, an assistant's answer is needed to learn from")
    try:
        opening = tokenizer.apply_chat_template(before)
        ids = [*opening, *tokenizer.encode(answer, add_special_tokens=False), *stop_ids[:1]]
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    if len(opening) < PIECE:
        yield ids[: len(opening) + PIECE], len(opening)


ROWS_AT_ONCE = 256  # rows with scores in memory at the same time


@torch.inference_mode()
def read_texts(network: Network, texts: Sequence[tuple[Sequence[int], int]]) -> list[WrittenText]:
    """Read some texts in one batched pass.

    Args:
        texts: token ids, and how many of them are the opening, which is not learnt from.
    """
    device = next(network.parameters()).device
    longest = max(len(ids) for ids, _ in texts)
    ids_BT = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in texts], device=device)
    hidden_BTH = network.hidden(ids_BT)
    num_kept = min(NUM_KEPT, network.spec.vocab_size)
    return [
        _written(network, ids, num_given, hidden_TH[: len(ids)], num_kept)
        for (ids, num_given), hidden_TH in zip(texts, hidden_BTH, strict=True)
    ]


def _written(network: Network, ids: Sequence[int], num_given: int, hidden_TH: Tensor, num_kept: int) -> WrittenText:
    """The text with the scores of the rows to learn from; the scores of other rows are 0."""
    first = max(num_given - 1, 0)
    parts = [
        top_scores(network.logits(rows).float().log_softmax(-1), num_kept)
        for rows in torch.split(hidden_TH[first:], ROWS_AT_ONCE)
    ]
    top_ids = torch.zeros(len(ids), num_kept, dtype=torch.int32)
    top_log_probs = torch.zeros(len(ids), num_kept, dtype=torch.float16)
    top_ids[first:] = torch.cat([ids.cpu().int() for _, ids in parts])
    top_log_probs[first:] = torch.cat([values.cpu().half() for values, _ in parts])
    return WrittenText(
        token_ids=torch.tensor(ids, dtype=torch.int32),
        num_given=num_given,
        top_ids=top_ids,
        top_log_probs=top_log_probs,
    )
