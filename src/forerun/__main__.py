"""The command, and python -m forerun. Slow imports come after Ctrl-C is handled."""

import gc
import sys
from typing import Final

# New objects beyond which Python looks for cycles: 700 by default. Importing torch and reading a vocabulary make two
# million that stay, and a start took 0.2 s longer.
OBJECTS_BETWEEN_COLLECTIONS: Final = 100_000


def main() -> None:
    """Run the command line; exit with 130 if Ctrl-C is pressed before it is loaded."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from forerun.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
