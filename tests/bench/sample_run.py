"""A made-up run, as `forerun bench run` would have written it: plausible numbers of contestants that never ran."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun_lab.bench.records.answers import Match, Record, RoundColumns, Turn
from forerun_lab.bench.records.record_files import to_line

DATASETS = {"mt_bench": 0.62, "humaneval": 0.83, "gsm8k": 0.75, "alpaca": 0.58, "summarization": 0.68, "qa": 0.52}
TEXT = "the model reads a prompt and then it writes what comes next , one token after another ."
PREFILL_S = 0.085


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a contestant behaves.

    Args:
        skill: share of the text's predictability it reaches; 0 drafts nothing.
        draft_s, verify_s, wait_s: mean times of a round.
        reach: drafted tokens in a row, at most.
    """

    kind: str = "drafter"
    skill: float = 0.0
    draft_s: float = 0.0
    wait_s: float = 0.0
    verify_s: float = 0.0104
    reach: int = 6


CONTESTANTS = {
    "none": Style(),
    "draft_model": Style(skill=1.0, draft_s=0.0052, verify_s=0.0121),
    "prompt_lookup": Style(skill=0.55, draft_s=0.0001, verify_s=0.0121),
    "parallel": Style(skill=0.96, draft_s=0.0011, wait_s=0.0009, verify_s=0.0122, reach=7),
    "transformers": Style(kind="peer", verify_s=0.0171),
    "llama.cpp": Style(kind="peer", verify_s=0.0112),
}


def sample_records(
    *,
    datasets: Sequence[str] = tuple(DATASETS),
    contestants: Sequence[str] = tuple(CONTESTANTS),
    temperatures: Sequence[float] = (0.0, 1.0),
    num_prompts: int = 20,
    repeats: int = 3,
    num_tokens: int = 128,
    slowdown: float = 1.0,
    seed: int = 0,
) -> list[Record]:
    """Records of a whole run.

    Args:
        slowdown: every time but none's texts is longer by this factor.
    """
    return [
        _record(dataset, contestant, temperature, number, repeat, num_tokens, slowdown, seed)
        for dataset in datasets
        for temperature in temperatures
        for number in range(num_prompts)
        for contestant in contestants
        for repeat in range(repeats)
    ]


def write_sample_run(folder: Path, **changes: Any) -> Path:
    """A run's folder with these records."""
    records = sample_records(**changes)
    for record in records:
        file = folder / record.dataset / f"{record.contestant}-temperature-{record.temperature:g}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(to_line(record).rstrip("\n") + "\n")
    (folder / "run.json").write_text(json.dumps(about(records)))
    return folder


def about(records: Sequence[Record]) -> dict[str, Any]:
    """run.json for these records, with one peer that could not take part."""
    names = list(dict.fromkeys(record.contestant for record in records))
    return {
        "version": 1,
        "forerun": "0.1.0",
        "plan": {"device": "cpu", "exactness": "fast", "num_threads": 16, "seed": 0},
        "machine": {
            "cpu": "AMD EPYC 9654",
            "cores": 16,
            "memory_bytes": 128 << 30,
            "os": "Linux 6.8",
            "python": "3.11.9",
            "torch": "2.13.0",
            "llama-cpp-python": "0.3.36",
            "commit": "4a6ecda",
            "date": "2026-11-21T20:56:37+00:00",
        },
        "command": "forerun bench run Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct --out runs/a",
        "target": "Qwen/Qwen2.5-7B-Instruct",
        "draft": "Qwen/Qwen2.5-0.5B-Instruct",
        "dtype": "bfloat16",
        "contestants": {
            name: {
                "kind": CONTESTANTS[name].kind if name in CONTESTANTS else "drafter",
                "settings": {},
                "skipped": None,
            }
            for name in names
        }
        | {"vllm": {"kind": "peer", "settings": {}, "skipped": "vLLM is not installed here"}},
        "datasets": list(dict.fromkeys(record.dataset for record in records)),
        "temperatures": sorted({record.temperature for record in records}),
        "repeats": 1 + max((record.repeat for record in records), default=0),
        "num_prompts": len({record.question_id for record in records}),
        "max_new_tokens": 128,
        "floor": {"bytes_per_step": 15_200_000_000, "bytes_per_s": 1.75e12},
    }


def _record(
    dataset: str,
    contestant: str,
    temperature: float,
    number: int,
    repeat: int,
    num_tokens: int,
    slowdown: float,
    seed: int,
) -> Record:
    style = CONTESTANTS.get(contestant, CONTESTANTS["draft_model"])
    of_prompt = np.random.default_rng([*dataset.encode(), number])
    of_answer = np.random.default_rng(
        [*dataset.encode(), *contestant.encode(), number, repeat, seed, int(temperature * 10)]
    )
    likely = DATASETS.get(dataset, 0.6) + of_prompt.normal(0, 0.06) - 0.08 * temperature
    turn = _turn(style, min(likely * style.skill, 0.95), of_answer, num_tokens, slowdown)
    return Record(
        question_id=number + 81,
        category="writing",
        contestant=contestant,
        dataset=dataset,
        temperature=temperature,
        turns=(turn,),
        repeat=repeat,
        seed=number,
    )


def _turn(style: Style, likely: float, random: np.random.Generator, num_tokens: int, slowdown: float) -> Turn:
    rounds: list[tuple[int, int, float, float, float]] = []
    emitted: list[int] = []
    while sum(emitted) < num_tokens:
        num_drafted = style.reach if style.skill and (style.skill > 0.6 or random.random() < 0.5) else 0
        accepted = min(int(random.geometric(1 - likely)) - 1, num_drafted) if num_drafted else 0
        noise = float(random.lognormal(0, 0.03)) * (3.0 if random.random() < 0.01 else 1.0) * slowdown
        verify_s = style.verify_s if num_drafted else min(style.verify_s, 0.0104 if style.kind == "drafter" else 1.0)
        rounds.append((num_drafted, accepted, style.draft_s * noise, verify_s * noise, style.wait_s * noise))
        emitted.append(accepted + 1)
    times = np.cumsum([(draft + verify) * 1.02 for _, _, draft, verify, _ in rounds]) + PREFILL_S * slowdown
    columns = list(zip(*rounds, strict=True))
    is_peer = style.kind == "peer"
    return Turn(
        text=TEXT,
        num_new_tokens=num_tokens,
        wall_s=float(times[-1]),
        token_ids=tuple(range(num_tokens)),
        num_prompt_tokens=64,
        emitted=tuple(emitted),
        emitted_at_s=tuple(float(time) for time in times),
        rounds=None
        if is_peer
        else RoundColumns(
            num_drafted=columns[0],
            num_verified=tuple(num + 1 for num in columns[0]),
            num_accepted=columns[1],
            draft_s=columns[2],
            verify_s=columns[3],
            wait_s=columns[4],
            was_hit=tuple(num > 0 and random.random() < 0.4 for num in columns[0]),
        ),
        match=_match(random, is_peer),
    )


def _match(random: np.random.Generator, is_peer: bool) -> Match:
    if random.random() > (0.1 if is_peer else 0.01):
        return Match(first_difference=None)
    return Match(first_difference=int(random.integers(5, 100)), margin=0.01, is_near_tie=True)
