"""The built-in pair on its held-out prompts: every drafter against `none`, and transformers plain and assisted.

python benchmarks/pair_speed.py [--num-prompts 40] [--num-new 128] [--no-peers]
"""

import argparse

import torch
from common import ASSETS, Contestant, measure_in_turn, ratio, read_prompts, standard_arguments, write_results
from transformers import AutoModelForCausalLM

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, PromptLookup, SamplingParams

DRAFTERS = {"none": NoDrafter(), "draft_model": DraftModel(), "prompt_lookup": PromptLookup()}


class Ours:
    """One engine with its tokens per round and its texts on the way."""

    def __init__(self, name: str, arguments: argparse.Namespace, temperature: float, prompts: list[list[int]]) -> None:
        self.engine = Engine(EngineConfig(drafter=DRAFTERS[name], dtype=arguments.dtype, num_threads=arguments.threads))
        self.params = SamplingParams(
            max_new_tokens=arguments.num_new, ignore_eos=True, temperature=temperature, seed=arguments.seed
        )
        self.prompts = prompts
        self.texts: dict[int, tuple[int, ...]] = {}
        self.num_rounds = self.num_tokens = self.num_near_ties = self.num_accepted = 0
        self.contestant = Contestant(name=name, write=self.write)

    def write(self, number: int) -> int:
        result = self.engine.generate(self.prompts[number], self.params)
        if number == 0:
            return len(result.token_ids)  # warm-up
        self.texts[number] = result.token_ids
        self.num_rounds += result.stats.num_rounds
        self.num_tokens += result.stats.num_new_tokens
        self.num_near_ties += result.stats.num_near_ties
        self.num_accepted += result.stats.num_accepted
        return len(result.token_ids)

    def equality(self, other: "Ours") -> str:
        """How many texts are those of `other`."""
        return f"{sum(self.texts[i] == other.texts[i] for i in self.texts)}/{len(self.texts)}"


def peer(
    arguments: argparse.Namespace, temperature: float, prompts: list[list[int]], num_draft: int | None
) -> Contestant:
    """transformers' generate: plain when `num_draft` is None, else assisted by so many tokens (0: default)."""
    dtype = torch.float32 if arguments.dtype == "auto" else getattr(torch, arguments.dtype)
    target = AutoModelForCausalLM.from_pretrained(ASSETS / "target", dtype=dtype).eval()
    extra: dict[str, object] = {}
    if num_draft is not None:
        draft = AutoModelForCausalLM.from_pretrained(ASSETS / "draft", dtype=dtype).eval()
        draft.generation_config.eos_token_id = None
        if num_draft:
            draft.generation_config.num_assistant_tokens = num_draft
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
        extra["assistant_model"] = draft
    if temperature:
        extra |= {"do_sample": True, "temperature": temperature, "top_k": 0}
    else:
        extra["do_sample"] = False
    target.generation_config.eos_token_id = None

    def write(number: int) -> int:
        ids = torch.tensor([prompts[number]])
        output = target.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=arguments.num_new, pad_token_id=0, **extra
        )
        return output.shape[1] - ids.shape[1]

    name = "transformers" if num_draft is None else f"transformers assisted ({num_draft or 'default'})"
    return Contestant(name=name, write=write)


def run(arguments: argparse.Namespace, temperature: float) -> list[dict[str, object]]:
    encode = Engine(EngineConfig(drafter=NoDrafter())).tokenizer.encode
    prompts = [encode(prompt) for prompt in read_prompts(arguments.num_prompts + 1, arguments.skip)]
    mine = [Ours(name, arguments, temperature, prompts) for name in DRAFTERS]
    contestants = [item.contestant for item in mine]
    if arguments.peers:
        contestants += [peer(arguments, temperature, prompts, count) for count in (None, 0, 3, 5)]
    measure_in_turn(contestants, arguments.num_prompts)
    assert all(item.num_accepted > 0 for item in mine[1:]), "a drafter that is never right was not measured"
    base = contestants[0]
    rows = []
    for place, contestant in enumerate(contestants):
        overall, middle = ratio(contestant, base)
        own = mine[place] if place < len(mine) else None
        rows.append({
            "temperature": temperature,
            "decoder": contestant.name,
            "tok/s": f"{contestant.tokens_per_s:.0f}",
            "over none": f"{overall:.2f}",
            "median": f"{middle:.2f}",
            "tokens/round": f"{own.num_tokens / own.num_rounds:.2f}" if own else "",
            "texts equal to none": own.equality(mine[0]) if own else "",
            "near ties": f"{own.num_near_ties}/{own.num_tokens}" if own else "",
        })  # fmt: skip
    return rows


def main() -> None:
    parser = standard_arguments(__doc__, "pair_speed")
    parser.add_argument("--num-prompts", type=int, default=40)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many prompts at the start")
    parser.add_argument("--num-new", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = run(arguments, 0.0) + run(arguments, 1.0)
    notes = [
        f"{arguments.num_prompts} held-out function headers x {arguments.num_new} tokens, whole calls with prefill, "
        "all decoders in turn prompt by prompt after one warm-up each; tokens/round counts the bonus token. "
        "transformers assisted: its default schedule, and 3 and 5 tokens a round."
    ]
    write_results(arguments, "Speed of the built-in pair", rows, notes)


if __name__ == "__main__":
    main()
