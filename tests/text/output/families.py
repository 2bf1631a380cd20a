"""Short chat templates in the public formats of model families, with what their models write.

Each of the five outputs is a text and what must be read from it: texts, and calls as (name, arguments). A call that
breaks off has its arguments as far as they go and a third part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "get-time"}},
]
HEAD = "{{ bos_token }}"
TAIL = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOOL_LIST = "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
CHAT = HEAD + TOOL_LIST + "{% for m in messages %}<|im_start|>{{ m.role }}\n@<|im_end|>\n{% endfor %}" + TAIL
REASON = "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
THINKS = "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"


def chat(message: str) -> str:
    """A template that renders each message so. Jinja drops a line break behind a block, so it is printed."""
    return CHAT.replace("@", message).replace("%}\n", "%}{{ '\\n' }}")


@dataclass(frozen=True)
class Family:
    """A template, outputs by name, and what two calls with the city Rome and no arguments are in a prompt."""

    template: str
    outputs: Mapping[str, tuple[str, list[object]]]
    two_calls: str


WEATHER = ("weather", '{"city": "Ro\\"me", "days": 3}')
JSON_WEATHER = '{"name": "weather", "arguments": {"city": "Ro\\"me", "days": 3}}'
JSON_TIME = '{"name": "get-time", "arguments": {}}'
PLAIN = ("It is <b>sunny</b> [in] {Rome}.\n", ["It is <b>sunny</b> [in] {Rome}.\n"])


def thought_of(text: str) -> tuple[str, str]:
    return ("thought", text)


HERMES = Family(
    template=chat(
        "{{ m.content }}{% for c in m.tool_calls %}{% if m.content or not loop.first %}\n{% endif %}"
        '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
        "{% endfor %}",
    )
    + "{# </think> #}",
    outputs={
        "plain": PLAIN,
        "one": (f"Wait.\n<tool_call>\n{JSON_WEATHER}\n</tool_call>", ["Wait.", WEATHER]),
        "two": (
            f"<tool_call>\n{JSON_WEATHER}\n</tool_call>\n<tool_call>\n{JSON_TIME}\n</tool_call>",
            [WEATHER, ("get-time", "{}")],
        ),
        "thought": (
            f"<think>\n<tool_call> is tempting\n</think>\n\n<tool_call>{JSON_TIME}</tool_call>\nDone",
            [thought_of("<tool_call> is tempting"), ("get-time", "{}"), "Done"],
        ),
        "cut": (
            '<tool_call>\n{"name": "weather", "arguments": {"city": "Ro',
            [("weather", '{"city": "Ro', "cut")],
        ),
    },
    two_calls='<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get-time", "arguments": {}}\n</tool_call>',
)
QWEN3 = Family(
    template=HERMES.template.replace("{{ m.content }}", REASON + "{{ m.content }}") + THINKS,
    outputs=HERMES.outputs,
    two_calls=HERMES.two_calls,
)
QWEN3_CODER = Family(
    template=chat(
        "{{ m.content }}{% for c in m.tool_calls %}{% if m.content or not loop.first %}\n{% endif %}"
        "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}"
        "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
        "</function>\n</tool_call>{% endfor %}",
    )
    + "{# </think> #}",
    outputs={
        "plain": PLAIN,
        "one": (
            "<tool_call>\n<function=weather>\n<parameter=city>\nRo\"me\n</parameter>\n<parameter=days>\n3\n</parameter>"
            "\n</function>\n</tool_call>",
            [WEATHER],
        ),
        "two": (
            "On it.\n<function=weather>\n<parameter=city>\n a<b\n</parameter> c\n</parameter></parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=get-time>\n<parameter=x>\n[1, True]\n</parameter>\n"
            "</function>\n</tool_call>",
            [
                "On it.", ("weather", '{"city": " a<b\\n</parameter> c"}'),
                ("get-time", '{"x": [1, true]}'),
            ],
        ),
        "thought": (
            "<think>so</think>\n<tool_call>\n<function=get-time>\n</function>\n</tool_call>",
            [thought_of("so"), ("get-time", "{}")],
        ),
        "cut": (
            "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</par",
            [("weather", '{"city": "Rome\\n</par', "cut")],
        ),
    },
    two_calls="<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=get-time>\n</function>\n</tool_call>",
)  # fmt: skip
GLM = Family(
    template=chat(
        "{{ m.content }}{% for c in m.tool_calls %}\n<tool_call>{{ c.function.name }}\n"
        "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
        "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
    )
    + "{# </think> #}",
    outputs={
        "plain": PLAIN,
        "one": (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ro\"me</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>3</arg_value>\n</tool_call>",
            [WEATHER],
        ),
        "two": (
            "<tool_call>weather<arg_key>city</arg_key><arg_value>\n</arg_value></tool_call>\n"
            "<tool_call>get-time\n</tool_call>",
            [("weather", '{"city": "\\n"}'), ("get-time", "{}")],
        ),
        "thought": (
            "\n<think>so</think>\n<tool_call>get-time</tool_call>", [thought_of("so"), ("get-time", "{}")],
        ),
        "cut": (
            "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_va",
            [("weather", '{"city": "Rome</arg_va', "cut")],
        ),
    },
    two_calls="\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>"
    "\n<tool_call>get-time\n</tool_call>",
)  # fmt: skip
LLAMA3 = Family(
    template=chat(
        "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}"
        "{% set c = m.tool_calls[0].function %}"
        '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}{% else %}{{ m.content }}{% endif %}',
    ),
    outputs={
        "plain": ('{"name": "Rome", "parameters": {}}\n', ['{"name": "Rome", "parameters": {}}\n']),
        "one": (JSON_WEATHER.replace("arguments", "parameters"), [WEATHER]),
        "two": (
            f"{JSON_WEATHER.replace('arguments', 'parameters')}; "
            '{"type": "function", "name": "get-time", "parameters": {}}',
            [WEATHER, ("get-time", "{}")],
        ),
        "thought": ("<|python_tag|>" + JSON_TIME, [("get-time", "{}")]),
        "cut": ('{"name": "weather", "parameters": {"days": [1, 2', [("weather", '{"days": [1, 2', "cut")]),
    },
    two_calls="",
)
MISTRAL_LIST = Family(
    template="{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 letters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% elif m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% elif m.role == 'assistant' %}"
    " {{ m.content }}</s>{% elif loop.index0 == 0 and m.role == 'system' %}{{ m.content }}"
    "{% else %}{{ raise_exception('this role must not stand here') }}{% endif %}{% endfor %}",
    outputs={
        "plain": PLAIN,
        "one": (f"[TOOL_CALLS] [{JSON_WEATHER}]", [WEATHER]),
        "two": (
            f'[TOOL_CALLS][{JSON_WEATHER[:-1]}, "id": "abcdefghi"}}, {JSON_TIME}]', [WEATHER, ("get-time", "{}")],
        ),
        "thought": (
            f"Hm\n[TOOL_CALLS] [{JSON_TIME}, {{\"name\": \"nobody\"}}]",
            ["Hm", ("get-time", "{}"), ', {"name": "nobody"}]'],
        ),
        "cut": ('[TOOL_CALLS] [{"name": "wea', ['[TOOL_CALLS] [{"name": "wea']),
    },
    two_calls='[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}, "id": "ID1"}, '
    '{"name": "get-time", "arguments": {}, "id": "ID2"}]</s>',
)  # fmt: skip
MISTRAL_ARGS = Family(
    template=chat(
        "{{ m.content }}{% for c in m.tool_calls %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
        "{{ c.function.arguments | tojson }}{% endfor %}",
    )
    + "{# [/THINK] #}",
    outputs={
        "plain": PLAIN,
        "one": ('[TOOL_CALLS]weather[ARGS]{"city": "Ro\\"me", "days": 3}', [WEATHER]),
        "two": (
            '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Ro\\"me", "days": 3}[TOOL_CALLS]get-time[ARGS]{}',
            [WEATHER, ("get-time", "{}")],
        ),
        "thought": ("[THINK]so[/THINK][TOOL_CALLS]get-time[ARGS]{}", [thought_of("so"), ("get-time", "{}")]),
        "cut": ('[TOOL_CALLS]weather[ARGS]{"city": tr', [("weather", '{"city": tr', "cut")]),
    },
    two_calls='[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]get-time[ARGS]{}',
)
CALL_BEGIN = "<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>"
CALL_END = "\n```<\uff5ctool▁call▁end\uff5c>"
CALLS_BEGIN = "<\uff5ctool▁calls▁begin\uff5c>"
CALLS_END = "<\uff5ctool▁calls▁end\uff5c>"
DEEPSEEK = Family(
    template=chat(
        f"{{% if m.content is none %}}{CALLS_BEGIN}{{% for c in m.tool_calls %}}{CALL_BEGIN}{{{{ c.function.name }}}}"
        f"\n```json\n{{{{ '' + c.function.arguments }}}}{CALL_END}{{% if not loop.last %}}\n{{% endif %}}{{% endfor %}}"
        f"{CALLS_END}{{% else %}}{{{{ m.content }}}}{{% endif %}}",
    )
    + "{# </think> #}",
    outputs={
        "plain": PLAIN,
        "one": (
            f'{CALLS_BEGIN}{CALL_BEGIN}weather\n```json\n{{"city": "Ro\\"me", "days": 3}}{CALL_END}{CALLS_END}',
            [WEATHER],
        ),
        "two": (
            f'Now.{CALLS_BEGIN}{CALL_BEGIN}weather\n```json\n{{"city": "Ro\\"me", "days": 3}}{CALL_END}\n'
            f"{CALL_BEGIN}get-time\n```json\n{{}}{CALL_END}",
            ["Now.", WEATHER, ("get-time", "{}")],
        ),
        "thought": (
            f"<think>so</think>{CALLS_BEGIN}{CALL_BEGIN}get-time\n```json\n{{}}\n```",
            [thought_of("so"), ("get-time", "{}")],
        ),
        "cut": (
            f'{CALLS_BEGIN}{CALL_BEGIN}weather\n```json\n{{"city": ',
            [("weather", '{"city": ', "cut")],
        ),
    },
    two_calls=f'{CALLS_BEGIN}{CALL_BEGIN}weather\n```json\n{{"city": "Rome"}}{CALL_END}\n'
    f"{CALL_BEGIN}get-time\n```json\n{{}}{CALL_END}{CALLS_END}",
)
SMOLLM3 = Family(
    template=chat("{{ m.content }}").replace("tools", "xml_tools") + "{# </think> #}",
    outputs=HERMES.outputs,
    two_calls=HERMES.two_calls,
)
PLAIN_CHAT = Family(
    template=chat("{{ m.content }}").replace(TOOL_LIST, "") + "{# </think> #}",
    outputs=HERMES.outputs,
    two_calls=HERMES.two_calls,
)
GRANITE = Family(
    template=chat(
        "{{ m.content }}{% if m.tool_calls %}<|tool_call|>[{% for c in m.tool_calls %}"
        '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
        "{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}",
    ),
    outputs={
        "plain": PLAIN,
        "one": (f"<|tool_call|>[{JSON_WEATHER}]", [WEATHER]),
        "two": (f"<|tool_call|> [ {JSON_WEATHER} ,\n{JSON_TIME}]", [WEATHER, ("get-time", "{}")]),
        "thought": (f"Hm <|tool_call|>{JSON_TIME}", ["Hm", ("get-time", "{}")]),
        "cut": ('<|tool_call|>[{"arguments": {"a": [', ['<|tool_call|>[{"arguments": {"a": [']),
    },
    two_calls='<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}, '
    '{"name": "get-time", "arguments": {}}]',
)
FAMILIES = {
    "hermes": HERMES,
    "qwen3": QWEN3,
    "qwen3_coder": QWEN3_CODER,
    "glm": GLM,
    "llama3": LLAMA3,
    "mistral_list": MISTRAL_LIST,
    "mistral_args": MISTRAL_ARGS,
    "deepseek": DEEPSEEK,
    "smollm3": SMOLLM3,
    "plain_chat": PLAIN_CHAT,
    "granite": GRANITE,
}
