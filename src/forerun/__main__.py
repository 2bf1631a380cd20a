"""The command, and python -m forerun. Nothing slow is imported before Ctrl-C has an answer."""

import gc
import sys
from typing import Final

# New objects beyond which Python looks for cycles: 700 by default. Importing torch and reading a vocabulary make two
# million that stay, and a start took 0.2 s longer.
OBJECTS_BETWEEN_COLLECTIONS: Final = 100_000


def main() -> None:
    """Run the command line; end with 130 where Ctrl-C comes before it is there."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from forerun.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
