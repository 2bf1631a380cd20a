"""Plain decoding: drafter `none` against transformers' generate, same checkpoint, dtype and threads, in one run.

python benchmarks/plain_speed.py [--model builtin|125m|1b ...]
"""

import tempfile
from pathlib import Path

import torch
from common import ASSETS, Contestant, measure_in_turn, ratio, read_prompts, standard_arguments, write_results
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from forerun import Engine, EngineConfig, NoDrafter, SamplingParams

SHAPES = {
    "125m": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
             "intermediate_size": 2048, "vocab_size": 32000},
    "1b": {"hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
           "intermediate_size": 5632, "vocab_size": 32000},
}  # fmt: skip


def random_llama(name: str, folder: Path) -> Path:
    """A random-weight Llama in bfloat16 with the built-in tokenizer's files beside it."""
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[name], max_position_embeddings=2048, tie_word_embeddings=False)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_bytes((ASSETS / "target" / file).read_bytes())
    return folder


def ours(folder: str, dtype: str, prompts: list[list[int]], num_new: int, threads: int) -> Contestant:
    engine = Engine(EngineConfig(target=folder, drafter=NoDrafter(), dtype=dtype, num_threads=threads))
    params = SamplingParams(max_new_tokens=num_new, ignore_eos=True)
    return Contestant(name="forerun none", write=lambda i: len(engine.generate(prompts[i], params).token_ids))


def theirs(folder: str, dtype: str, prompts: list[list[int]], num_new: int) -> Contestant:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def write(number: int) -> int:
        ids = torch.tensor([prompts[number]])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return output.shape[1] - ids.shape[1]

    return Contestant(name="transformers", write=write)


def run(name: str, dtype: str, arguments) -> dict[str, object]:
    num_new, num_prompts = {"builtin": (96, 24), "125m": (32, 12), "1b": (12, 6)}[name]
    tokenizer = Engine(EngineConfig(drafter=NoDrafter())).tokenizer
    prompts = [tokenizer.encode(prompt)[:64] for prompt in read_prompts(num_prompts + 1)]
    with tempfile.TemporaryDirectory() as folder:
        place = str(ASSETS / "target") if name == "builtin" else str(random_llama(name, Path(folder)))
        contestants = [
            ours(place, dtype, prompts, num_new, arguments.threads),
            theirs(place, dtype, prompts, num_new),
        ]
        measure_in_turn(contestants, num_prompts)
    mine, other = contestants
    overall, middle = ratio(mine, other)
    return {
        "model": name, "dtype": dtype, "forerun tok/s": f"{mine.tokens_per_s:.1f}",
        "transformers tok/s": f"{other.tokens_per_s:.1f}", "ratio": f"{overall:.2f}", "median ratio": f"{middle:.2f}",
        "prompts x tokens": f"{num_prompts} x {num_new}",
    }  # fmt: skip


def main() -> None:
    parser = standard_arguments(__doc__, "plain_speed")
    parser.add_argument("--model", nargs="+", default=["builtin", "125m", "1b"])
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name in arguments.model:
        for dtype in ("float32", "bfloat16") if name == "builtin" else ("bfloat16",):
            rows.append(run(name, dtype, arguments))
            print(rows[-1], flush=True)
    notes = [
        "Whole calls, prefill of up to 64 tokens included, greedy, the two in turn prompt by prompt after a warm-up. "
        "Random-weight models: 125m is 12 layers x 768, 1b is 22 x 2048, untied heads of 32,000 tokens."
    ]
    write_results(arguments, "Plain decoding against transformers' generate", rows, notes)


if __name__ == "__main__":
    main()
