"""Text as it comes, and what every round of drafting and verifying brought."""

from forerun import Engine, EngineConfig, PromptLookup, SamplingParams

PROMPT = "import os\nimport sys\n\n\ndef main():"


def main() -> None:
    with Engine(EngineConfig(drafter=PromptLookup())) as engine:
        print(PROMPT, end="")
        steps = []
        for step in engine.stream(PROMPT, SamplingParams(max_new_tokens=80)):
            print(step.text, end="", flush=True)
            steps.append(step)
    accepted = sum(step.stats.num_accepted for step in steps)
    print(f"\n\n{len(steps)} rounds, {accepted} drafted tokens accepted, ended by {steps[-1].finish}")


if __name__ == "__main__":
    main()
