"""docs/commands.md lists every command and flag as the program has them; run as a program, this file rewrites it."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import typer.main

from forerun.cli.help_text import describe, names_of, panels_of, usage_of
from forerun.cli.main import app
from tests.contracts.written_page import WrittenPage


def commands(command: Any, path: str = "forerun") -> Iterator[tuple[str, Any]]:
    for name, item in command.commands.items():
        if hasattr(item, "commands"):
            yield from commands(item, f"{path} {name}")
        else:
            yield f"{path} {name}", item


def reference() -> str:
    """A section for each command; flags that an earlier command has, one by one or as a panel, are only referred to."""
    parts: list[str] = []
    seen: dict[tuple[str, ...], str] = {}
    explained: dict[str, str] = {}
    for name, command in commands(typer.main.get_command(app)):
        parts.append(f"## {name}\n\n    {name} {usage_of(command)}\n\n{' '.join((command.help or '').split())}\n")
        same: dict[str, list[str]] = {}
        for panel, params in panels_of(command).items():
            rows = tuple(f"| `{names_of(param)}` | {cell(describe(param))} |" for param in params)
            first = seen.setdefault(rows, name)
            if first != name:
                same.setdefault(first, []).append(panel)
            elif rows:
                parts.append(f"| {panel} | |\n|---|---|\n" + "\n".join(shortened(rows, name, explained)) + "\n")
        parts.extend(f"{', '.join(panels)}: the same as for `{first}`.\n" for first, panels in same.items())
    return "\n".join(parts)


def shortened(rows: Sequence[str], name: str, explained: dict[str, str]) -> Iterator[str]:
    """The rows, except that of rows which one earlier command has, two or more, only the flags are named."""
    first = {row: explained.setdefault(row, name) for row in rows}
    referred = [command for command, times in Counter(first.values()).items() if command != name and times > 1]
    yield from (row for row in rows if first[row] not in referred)
    for command in referred:
        flags = [found[0] for row in rows if first[row] == command and (found := re.search(r"--[\w-]+", row))]
        yield f"| {', '.join(f'`{flag}`' for flag in flags)} | as for `{command}` |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


PAGE = WrittenPage(name="commands.md", module="test_commands_page", reference=reference)


def test_the_page_of_commands_is_that_of_the_program() -> None:
    PAGE.require_up_to_date()


if __name__ == "__main__":
    PAGE.write()
