"""The command, and python -m forerun. Nothing slow is imported before Ctrl-C has an answer."""

import sys


def main() -> None:
    """Run the command line; end with 130 where Ctrl-C comes before it is there."""
    try:
        from forerun.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
