"""A draft that grows in a process of its own; that process is killed halfway, and the text does not notice."""

import os
import signal

from forerun import Engine, EngineConfig, NoDrafter, Parallel, SamplingParams

PROMPT = "def read_lines(path):\n    "
PARAMS = SamplingParams(max_new_tokens=200, temperature=0.8, seed=7, ignore_eos=True)


def main() -> None:
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1)) as engine:
        alone = engine.generate(PROMPT, PARAMS)
    with Engine(EngineConfig(drafter=Parallel(), num_threads=1)) as engine:
        print(PROMPT, end="")
        token_ids: list[int] = []
        states = []
        for step in engine.stream(PROMPT, PARAMS):
            print(step.text, end="", flush=True)
            token_ids += step.token_ids
            states.append(step.stats.drafter.value)
            if len(states) == 20:
                os.kill(engine.drafter_pid, signal.SIGKILL)
    rounds = {state: states.count(state) for state in dict.fromkeys(states)}
    print(f"\n\nsame text as without a drafter: {tuple(token_ids) == alone.token_ids}; rounds: {rounds}")


if __name__ == "__main__":
    main()
