"""What a grammar costs and what its forced tokens save: tokens per second of one model, in turn; the time of masks.

python -m forerun_lab.checks.structured MODEL [--repeats 5]
"""

import argparse
import random
from collections.abc import Callable
from statistics import median
from time import perf_counter

from forerun import Automatic, Engine, EngineConfig, Grammar, NoDrafter, PromptLookup, SamplingParams
from forerun.text.grammar_compiler import GrammarCompiler

NUM_TOKENS = 128
NUM_NODES = 21
NUM_BRANCHES = 4
ANYTHING = Grammar.regex(r"(.|\n)*")
PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 40},
        "date_of_birth": {"type": "string", "format": "date"},
        "occupation": {"enum": ["engineer", "teacher", "physician", "other"]},
        "email_address": {"type": "string", "maxLength": 40},
        "is_currently_employed": {"type": "boolean"},
        "years_of_experience": {"type": "integer", "minimum": 0, "maximum": 60},
        "previous_employers": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    },
}
PERSON["required"] = list(PERSON["properties"])
PROMPT = [{"role": "user", "content": "Invent a person and describe them as JSON."}]


def speed(engine: Engine, grammar: Grammar | None) -> tuple[float, str]:
    """Tokens per second of decoding, and the text."""
    answer = engine.generate(PROMPT, SamplingParams(max_new_tokens=NUM_TOKENS, grammar=grammar), owner="measured")
    return answer.stats.num_new_tokens / answer.stats.decode_s, answer.text


def compare(model: str, repeats: int) -> None:
    """Print the speed of each combination over plain decoding without a grammar, medians of pairs."""
    plain = Engine(EngineConfig(target=model, drafter=NoDrafter(), max_length=1024))
    forced = Engine(EngineConfig(target=model, drafter=PromptLookup(), max_length=1024))
    auto = Engine(EngineConfig(target=model, drafter=Automatic(), max_length=1024))
    schema = Grammar.json_schema(PERSON)
    cases: dict[str, Callable[[], tuple[float, str]]] = {
        "none": lambda: speed(plain, None),
        "none, a grammar of all texts": lambda: speed(plain, ANYTHING),
        "none, schema": lambda: speed(plain, schema),
        "prompt_lookup and forced tokens, schema": lambda: speed(forced, schema),
        "auto and forced tokens, schema": lambda: speed(auto, schema),
    }
    with plain, forced, auto:
        texts = {name: run()[1] for name, run in cases.items()}  # which also warms up
        runs = [{name: run()[0] for name, run in cases.items()} for _ in range(repeats)]
    assert texts["none"] == texts["none, a grammar of all texts"], "a grammar of all texts changes none"
    assert len({text for name, text in texts.items() if name.endswith("schema")}) == 1, "drafting changes no text"
    print(texts["none, schema"])
    print("| drafter and grammar | tokens/s | over none |\n|---|---|---|")
    for name in cases:
        ratios = [run[name] / run["none"] for run in runs]
        row = f"{median(run[name] for run in runs):.1f} | {median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"| {name} | {row} |")


def masks(model: str) -> None:
    """Print the time to prune a tree and to compute its masks, within a string and at every place of an answer."""
    with Engine(EngineConfig(target=model, drafter=NoDrafter(), max_length=256)) as engine:
        vocab_size = engine.spec.vocab_size
        tokenizer = engine.tokenizer
        began = perf_counter()
        compiler = GrammarCompiler(tokenizer, vocab_size, [engine.tokenizer.vocabulary().get("<|im_end|>", 0)])
        constraint = compiler.compile(Grammar.json_schema(PERSON))
        print(f"{vocab_size} tokens, read and first grammar compiled in {perf_counter() - began:.2f} s")
        text = tokenizer.encode('{"full_name": "Ada Lovelace", "date_of_birth": "', add_special_tokens=False)
        rng = random.Random(0)
        times = []
        for end in range(len(text)):
            parents = [-1]
            token_ids = [0]
            for _ in range(NUM_BRANCHES):
                for depth in range((NUM_NODES - 1) // NUM_BRANCHES):
                    parents.append(len(parents) - 1 if depth else 0)
                    is_text = end + depth < len(text)
                    token_ids.append(text[end + depth] if is_text else rng.randrange(256, vocab_size // 2))
            for _ in range(5):
                began = perf_counter()
                nodes = constraint.allowed_nodes(token_ids, parents)
                places = {node: place for place, node in enumerate(nodes)}
                kept = [-1, *(places[parents[node]] for node in nodes[1:])]
                constraint.masks([token_ids[node] for node in nodes], kept)
                times.append(perf_counter() - began)
            constraint.commit(text[end : end + 1])
    times.sort()
    shown = ", ".join(f"{name} {value * 1e3:.2f}" for name, value in (
        ("median", median(times)), ("90th percentile", times[int(len(times) * 0.9)]), ("most", times[-1])))  # fmt: skip
    print(f"a tree of {NUM_NODES} nodes, pruned, and its masks: {shown} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    masks(options.model)
    compare(options.model, options.repeats)


if __name__ == "__main__":
    main()
