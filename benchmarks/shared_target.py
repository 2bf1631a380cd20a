"""A target shared by two processes, compared with one process with one and with two threads, on a CPU.

python benchmarks/shared_target.py --target smollm2 [--num-prompts 4] [--weights int4]

Plain decoding, greedy; the three answer every question in turn. Ranks have one thread each.
"""

from itertools import starmap
from statistics import median

from common import Run, answer_in_turn, ask, config_of, standard_arguments, write_results

from forerun import Engine, NoDrafter, SamplingParams

SETUPS = (("1 rank, 1 thread", 1, 1), ("1 rank, 2 threads", 1, 2), ("2 ranks, 1 thread each", 2, 1))


def main() -> None:
    parser = standard_arguments(__doc__, "shared_target", num_prompts=8, num_new=128)
    parser.add_argument("--weights", default="stored")
    arguments = parser.parse_args()

    def run_of(name: str, num_ranks: int, num_threads: int) -> Run:
        config = config_of(
            arguments, drafter=NoDrafter(), target_ranks=num_ranks, num_threads=num_threads, weights=arguments.weights
        )
        return Run(name=name, engine=Engine(config), num_threads=num_threads)

    runs = list(starmap(run_of, SETUPS))
    questions = [ids for _, ids in ask(arguments, arguments.num_prompts)]
    params = SamplingParams(max_new_tokens=arguments.num_new, ignore_eos=True)
    answer_in_turn(runs, [questions[0], *questions], params)
    rows = [row_of(run, runs[0]) for run in runs]
    notes = [
        f"{arguments.target}, weights {arguments.weights}, {len(questions)} questions x {arguments.num_new} tokens: "
        "the middle of the answers' speeds; texts that are those of one rank.",
    ]
    write_results(arguments, "A target shared by two processes of one CPU", rows, notes)


def row_of(run: Run, first: Run) -> dict[str, object]:
    speeds = [result.stats.num_new_tokens / result.stats.decode_s for result in run.results[1:]]
    return {"": run.name, "tokens/s": f"{median(speeds):.1f}", "same texts": run.same_texts(first)}


if __name__ == "__main__":
    main()
