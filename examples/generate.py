"""One prompt with and without a drafter: the same text, in fewer passes of the target."""

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, SamplingParams

PROMPT = 'def read_lines(path):\n    """Return the lines of a text file without their line ends."""'
PARAMS = SamplingParams(temperature=0.7, max_new_tokens=96, seed=7)


def main() -> None:
    texts = []
    for drafter in (NoDrafter(), DraftModel(verify_width=8)):
        with Engine(EngineConfig(drafter=drafter)) as engine:
            result = engine.generate(PROMPT, PARAMS)
        stats = result.stats
        texts.append(result.text)
        print(
            f"{type(drafter).__name__:>10}: {stats.num_new_tokens} tokens in {stats.num_rounds} rounds, "
            f"{stats.tokens_per_round:.2f} a round, {stats.tokens_per_s:.0f} tokens/s"
        )
    print("same text:", texts[0] == texts[1])
    print(PROMPT + texts[0])


if __name__ == "__main__":
    main()
