"""The form of conversations that a chat template accepts, and how its model writes thoughts and tool calls."""

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

CallKind: TypeAlias = Literal["json", "named", "tagged", "pythonic", "gemma", "harmony"]
EmptyContent: TypeAlias = Literal["text", "null", "absent"]
TOKEN_LIKE: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How a model writes tool calls. Marks include the white space around them; "" is no mark.

    Args:
        kind: "json": an object with a name and arguments. "named": the name, then arguments as JSON. "tagged": the
            name, then each argument between its own marks. "pythonic": f(a=1). "gemma": call:f{a:1}. "harmony":
            gpt-oss's messages.
        section_begin, section_end: around all calls of an answer.
        call_begin, call_end: around one call. Without either begin, a call is the whole answer.
        is_list: calls are in a list, in brackets.
        separator: between calls.
        name_key, arguments_key: keys of an object of kind "json".
        name_begin, name_end: around the name, in the kinds "named" and "tagged".
        is_numbered: whether a colon and the call's number follow the name.
        parameter_begin, parameter_name_end, parameter_end: around an argument's name and its value.
        arguments_end: after the last argument, before `call_end`.
        string_mark: the mark around texts in the kind "gemma".
    """

    kind: CallKind
    section_begin: str = ""
    section_end: str = ""
    call_begin: str = ""
    call_end: str = ""
    is_list: bool = False
    separator: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    name_begin: str = ""
    name_end: str = ""
    is_numbered: bool = False
    parameter_begin: str = ""
    parameter_name_end: str = ""
    parameter_end: str = ""
    arguments_end: str = ""
    string_mark: str = ""

    @property
    def first_mark(self) -> str:
        """The first mark of calls, without white space around it; "" if they have none."""
        return self.section_begin.strip() or self.call_begin.strip() or self.name_begin.strip()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        found = (
            self.section_begin,
            self.section_end,
            self.call_begin,
            self.call_end,
            self.name_begin,
            self.name_end,
            self.parameter_begin,
            self.parameter_name_end,
            self.parameter_end,
            self.arguments_end,
            self.string_mark,
        )
        others = HARMONY_MARKS if self.kind == "harmony" else () if self.first_mark else (PYTHON_TAG,)
        return (*filter(None, found), *others)


PYTHON_TAG: Final = "<|python_tag|>"  # Llama 3.1 may write it before a call
HARMONY_MARKS: Final = (
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)
HERMES: Final = CallFormat(kind="json", call_begin="<tool_call>\n", call_end="\n</tool_call>", separator="\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateTraits:
    """The form of conversations that a chat template accepts, found by rendering it, and the form of answers.

    Args:
        variables: names of the template's own variables, such as enable_thinking.
        tools_variable: the variable that takes the tools; "" if the template knows none.
        wants_tools_list: whether that variable must be a list even without tools.
        calls: how the model writes calls; None for a template without tools: then the prompt asks for calls in Hermes'
            words, and the model writes them in Hermes' form.
        thought: the marks around a thought; None if the model writes none, or within other marks, as gpt-oss does.
        wants_mapping: whether arguments of calls are given as a mapping; otherwise as JSON text.
        takes_broken_arguments: whether arguments that are not a JSON object can be given as text.
        empty_content: the content of a message that has only calls.
        takes_system, takes_later_system, takes_developer, takes_tool_role: which messages it renders.
        takes_system_before_answers: whether it renders the system message if the last turn is not a user's.
        takes_empty_answers: whether an answer may have neither a text nor calls.
        alternates: whether users and answers must alternate.
        skips_calls: whether answers with calls, and results of tools, do not count when they alternate.
        refused_starts: what a conversation must not begin with after its system message: "A": an answer, "C": calls,
            "T": a tool's result, "S": nothing, which ends it; then "U" if a user's message comes later, and "+" if
            tools are given.
        refused_results: where a tool's result that does not follow its calls is refused or left out, as the letters of
            the turns before it: "U": a user's message, "A": an answer, "C": calls, "CT": calls with results, such as
            "UCTAU".
        wants_descriptions: whether tools must have descriptions.
        wants_ids: whether calls and results must have ids.
        wants_short_ids: whether ids of calls must be 9 letters and digits.
        wants_named_ids: whether ids of calls must be functions.NAME:NUMBER, counted through the conversation, since
            the template shows only these ids.
        wants_single_calls: whether it refuses messages with several calls, or leaves some of them out.
        drops_calls: whether the template leaves out earlier calls, so that their text must be put into the content.
        wants_tool_responses: whether results of tools go into `tool_responses` of the message with the calls.
    """

    variables: tuple[str, ...] = ()
    tools_variable: str = ""
    wants_tools_list: bool = False
    calls: CallFormat | None = None
    thought: tuple[str, str] | None = None
    wants_mapping: bool = True
    takes_broken_arguments: bool = True
    empty_content: EmptyContent = "text"
    takes_system: bool = True
    takes_system_before_answers: bool = True
    takes_later_system: bool = True
    takes_developer: bool = False
    takes_tool_role: bool = True
    takes_empty_answers: bool = True
    alternates: bool = False
    skips_calls: bool = False
    refused_starts: tuple[str, ...] = ()
    refused_results: tuple[str, ...] = ()
    wants_descriptions: bool = False
    wants_ids: bool = False
    wants_short_ids: bool = False
    wants_named_ids: bool = False
    wants_single_calls: bool = False
    drops_calls: bool = False
    wants_tool_responses: bool = False

    @property
    def takes_tools(self) -> bool:
        """Whether the template shows tools to the model."""
        return self.tools_variable != ""

    @property
    def call_format(self) -> CallFormat:
        """How calls are written: the model's form, or Hermes' if it has none."""
        return self.calls or HERMES

    @property
    def shown_tokens(self) -> frozenset[str]:
        """Texts that must be decoded even where they are special tokens, so that the parser sees the marks."""
        marks = " ".join((*self.call_format.marks, *(self.thought or ())))
        return frozenset(TOKEN_LIKE.findall(marks))
