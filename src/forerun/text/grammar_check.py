"""Checks whether an untrusted grammar can be compiled, in a process that it may crash or keep busy."""

from collections.abc import Mapping
from threading import Lock
from typing import Any, Final

from forerun.core.errors import ConfigError
from forerun.core.grammar import Grammar
from forerun.text.grammar_compiler import MAX_CHARACTERS, PARSER_LIMITS, source_of
from forerun.wires.bounded_child import BoundedChild, LimitError, Limits

LIMITS: Final = Limits(max_s=0.6, max_bytes=2**30)
ANY_TEXT: Final = Grammar.regex("a")
MOST_KEPT: Final = 256


class GrammarFaultError(ConfigError):
    """A grammar that cannot be compiled.

    Args:
        place: path and keyword of the fault in the schemas that were given with it; "" if it is not known.
    """

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class GrammarCheck:
    """Checks grammars, one at a time. Any thread may ask."""

    def __init__(self) -> None:
        self._child = BoundedChild("forerun.text.grammar_child", {})
        self._good = dict.fromkeys((ANY_TEXT,))  # the newest last
        self._is_warm = False
        self._lock = Lock()

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def require(self, grammar: Grammar, schemas: Mapping[str, Any]) -> None:
        """Raise GrammarFaultError for a grammar that cannot be compiled.

        Args:
            schemas: its JSON schemas, by their paths in the request; a fault is searched in them.
        """
        with self._lock:
            if grammar not in self._good:
                self._compile(grammar, schemas)
                self._good[grammar] = None
                if len(self._good) > MOST_KEPT:
                    del self._good[next(iter(self._good))]

    def start(self) -> None:
        """Start the process, so that it imports its modules before the first grammar."""
        if not self._is_warm:
            self._ask(ANY_TEXT, {})
            self._is_warm = True

    def _compile(self, grammar: Grammar, schemas: Mapping[str, Any]) -> None:
        if len(grammar.text) > MAX_CHARACTERS:
            raise GrammarFaultError(f"it has {len(grammar.text)} characters, but at most {MAX_CHARACTERS} are allowed")
        self.start()
        try:
            found = self._ask(grammar, schemas)
        except LimitError:
            self._is_warm = False
            self._child.start()  # for the next grammar
            raise GrammarFaultError(
                "it takes too much time or memory, or has too many rules within rules: simplify it"
            ) from None
        except (ValueError, RecursionError) as error:
            raise GrammarFaultError(f"it cannot be read ({error})") from None
        if found["fault"]:
            raise GrammarFaultError(found["fault"], found["place"])

    def _ask(self, grammar: Grammar, schemas: Mapping[str, Any]) -> Any:
        question = {"source": source_of(grammar), "schemas": schemas, "limits": PARSER_LIMITS}
        return self._child.ask(question, LIMITS)
