"""python -m forerun_lab.training: from text on disk to the built-in model pair, in one go."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from forerun_lab.training import dataset, export, plot, train


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="forerun_lab.training", description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/tiny"), help="where the run keeps its state (default: %(default)s)"
    )
    parser.add_argument(
        "--prose", type=Path, help="folder of plain English, .txt or .txt.gz; without it Python source alone"
    )
    parser.add_argument(
        "--seconds", type=float, default=5400.0, help="training time, without pauses (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="order of the text and start of the weights (default: %(default)s)"
    )
    parser.add_argument("--destination", type=Path, help="where the pair is written (default: FOLDER/export)")
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error(f"--seconds {options.seconds} must be > 0")
    if options.prose and not options.prose.is_dir():
        parser.error(f"--prose {options.prose} is not a folder")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare, train, export and plot. A stopped run goes on from its last saved state when called again."""
    options = parse(arguments)
    dataset.prepare(options.folder / "data", options.prose, train.TARGET.vocab_size, options.seed)
    train.train(options.folder, options.seconds, options.seed)
    destination = options.destination or options.folder / "export"
    export.export(options.folder, destination)
    plot.plot_losses(options.folder / "log.jsonl", options.folder / "losses.png")
    print(f"model pair: {destination}\nloss curve: {options.folder / 'losses.png'}")


if __name__ == "__main__":
    main()
