"""Packages that forerun uses if they are there, and the command that installs one of them."""

import shlex
import sys
from pathlib import Path
from typing import Final

# The extras in pyproject.toml name the same versions; a test compares them.
REQUIREMENTS: Final = {
    "bayesian-optimization": "bayesian-optimization>=3.0",
    "matplotlib": "matplotlib>=3.8",
    "ray": "ray[serve]>=2.59",
    "transformers": "transformers>=4.56,<6",
    "triton": "triton>=3.6",
}


def install_command(package: str) -> str:
    """The shell command that installs a package of `REQUIREMENTS` for the Python that runs this program.

    A shell's own `pip` may belong to another Python. In a virtual environment below the working folder the command is
    short, as in `.venv/bin/pip install 'ray[serve]>=2.59'`; else it names the interpreter.
    """
    python = Path(sys.executable)
    here = Path.cwd()
    if sys.prefix != sys.base_prefix and python.is_relative_to(here):
        pip = [str(python.relative_to(here).with_name("pip"))]
    else:
        pip = [str(python), "-m", "pip"]
    return shlex.join([*pip, "install", REQUIREMENTS[package]])
