"""Short chat templates of families whose calls are no JSON, with what their models write; see `families`."""

from tests.text.output.families import PLAIN, WEATHER, Family, chat, thought_of

GEMMA4 = Family(
    template=chat(
        "{% macro said(v) %}{% if v is string %}<|\"|>{{ v }}<|\"|>{% elif v is mapping %}"
        "{ {%- for k, i in v | dictsort %}{{ k }}:{{ said(i) }}{% if not loop.last %},{% endif %}{% endfor %}}"
        "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}{{ m.content }}{% for c in m.tool_calls %}"
        "<|tool_call>call:{{ c.function.name }}{{ said(c.function.arguments) }}<tool_call|>{% endfor %}"
        "{% for r in m.tool_responses %}<|tool_response>response:{{ r.name }}{{ said(r.response) }}<tool_response|>"
        "{% endfor %}"
    ).replace("{% for m in messages %}", "{% for m in messages if m.role != 'tool' %}")
    + "{# <|channel>thought #}",
    outputs={
        "plain": PLAIN,
        "one": ('<|tool_call>call:weather{city:<|"|>Ro"me<|"|>,days:3}<tool_call|>', [WEATHER]),
        "two": (
            'Hm.<|tool_call>call:weather{city:<|"|>Ro"me<|"|>,days:3}<tool_call|>'
            '<|tool_call>call:get-time{o:{k:true,l:[1,<|"|>,}<|"|>]}}<tool_call|>',
            ["Hm.", WEATHER, ("get-time", '{"o": {"k": true, "l": [1, ",}"]}}')],
        ),
        "thought": (
            "<|channel>thought\nso<channel|>call:get-time{}<tool_call|>", [thought_of("so"), ("get-time", "{}")],
        ),
        "cut": ('<|tool_call>call:weather{city:<|"|>Ro', ['<|tool_call>call:weather{city:<|"|>Ro']),
    },
    two_calls='<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|><|tool_call>call:get-time{}<tool_call|>'
    '<|tool_response>response:weather<|"|>sunny<|"|><tool_response|>',
)  # fmt: skip
GPT_OSS = Family(
    template=chat(
        "{% if m.role == 'tool' %}functions.{{ m.name }} to=assistant<|channel|>commentary<|message|>{{ m.content }}"
        "{% else %}{{ m.content }}{% endif %}{% for c in m.tool_calls %}<|channel|>commentary to=functions."
        "{{ c.function.name }} <|constrain|>json<|message|>{{ c.function.arguments | tojson }}<|call|>{% endfor %}"
    ),
    outputs={
        "plain": (
            "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>It is\nsunny.",
            [thought_of("Easy."), "It is\nsunny."],
        ),
        "one": (
            "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
            '{"city": "Ro\\"me", "days": 3}<|call|>',
            [WEATHER],
        ),
        "two": (
            "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.weather<|channel|>commentary"
            ' json<|message|>{"city": "Ro\\"me", "days": 3}<|call|><|start|>assistant<|channel|>commentary '
            "to=functions.get-time<|message|>{}",
            ["I look.", WEATHER, ("get-time", "{}")],
        ),
        "thought": (
            "<|channel|>analysis<|message|>to=functions.weather?<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.nobody<|message|>{}<|call|>",
            [thought_of("to=functions.weather?"), "{}"],
        ),
        "cut": (
            '<|channel|>commentary to=functions.weather<|message|>{"city": "Ro',
            [("weather", '{"city": "Ro', "cut")],
        ),
    },
    two_calls='<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
    "<|channel|>commentary to=functions.get-time <|constrain|>json<|message|>{}<|call|>",
)
LFM2 = Family(
    template=chat("{{ m.content }}") + "{# <|tool_call_start|> #}",
    outputs={
        "plain": PLAIN,
        "one": ("<|tool_call_start|>[weather(city='Ro\"me', days=03)]<|tool_call_end|>", [WEATHER]),
        "two": (
            'Wait <|tool_call_start|>[weather(city="Ro\\"me", days=3), get-time(from=[1, {"a": None}])]'
            "<|tool_call_end|>Done",
            ["Wait", WEATHER, ("get-time", '{"from": [1, {"a": null}]}'), "Done"],
        ),
        "thought": (
            "<|tool_call_start|>[nobody()]<|tool_call_end|>", ["<|tool_call_start|>[nobody()]<|tool_call_end|>"],
        ),
        "cut": (
            '<|tool_call_start|>[get-time(), weather(city="Ro', [("get-time", "{}"), ', weather(city="Ro'],
        ),
    },
    two_calls="<|tool_call_start|>[weather(city='Rome'), get-time()]<|tool_call_end|>",
)  # fmt: skip
OLMO3 = Family(
    template=chat("{{ m.content }}") + "{# <function_calls> #}",
    outputs={
        "plain": PLAIN,
        "one": ('<function_calls>weather(city="Ro\\"me", days=3)</function_calls>', [WEATHER]),
        "two": (
            '<function_calls>\nweather(city="Ro\\"me", days=3)\nget-time(x=true)\n</function_calls>',
            [WEATHER, ("get-time", '{"x": true}')],
        ),
        "thought": ("a <function_calls> b", ["a <function_calls> b"]),
        "cut": ("<function_calls>\nget-time()\n</function_ca", [("get-time", "{}")]),
    },
    two_calls="<function_calls>weather(city='Rome')\nget-time()</function_calls>",
)
LLAMA_PYTHONIC = Family(
    template=chat(
        "{{ m.content }}{% if m.tool_calls %}[{% for c in m.tool_calls %}{{ c.function.name }}("
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}{% endfor %})"
        "{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}"
    )
    + "{# [func_name1(params_name1=params_value1)] #}",
    outputs={
        "plain": ("[1] says: weather(city).\n", ["[1] says: weather(city).\n"]),
        "one": ('[weather(city="Ro\\"me", days=3)]', [WEATHER]),
        "two": ('[weather(city="Ro\\"me", days=3), get-time()]', [WEATHER, ("get-time", "{}")]),
        "thought": ('<|python_tag|>get-time.call(query="x")', [("get-time", '{"query": "x"}')]),
        "cut": ("[weather(city=", ["[weather(city="]),
    },
    two_calls='[weather(city="Rome"), get-time()]',
)
KIMI = Family(
    template=chat(
        "{{ m.content }}{% if m.tool_calls %}<|tool_calls_section_begin|>{% for c in m.tool_calls %}"
        "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}"
        "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}"
    ),
    outputs={
        "plain": PLAIN,
        "one": (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
            '{"city": "Ro\\"me", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
            [WEATHER],
        ),
        "two": (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>"
            '{"city": "Ro\\"me", "days": 3}<|tool_call_end|><|tool_call_begin|>get-time:4<|tool_call_argument_begin|>'
            "{}<|tool_call_end|><|tool_calls_section_end|>",
            [WEATHER, ("get-time", "{}")],
        ),
        "thought": ("x <|tool_calls_section_begin|> y", ["x <|tool_calls_section_begin|> y"]),
        "cut": (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.wea",
            ["<|tool_calls_section_begin|><|tool_call_begin|>functions.wea"],
        ),
    },
    two_calls='<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>'
    '{"city": "Rome"}<|tool_call_end|>',
)  # fmt: skip
LOOSE_FAMILIES = {
    "gemma4": GEMMA4,
    "gpt_oss": GPT_OSS,
    "lfm2": LFM2,
    "olmo3": OLMO3,
    "llama_pythonic": LLAMA_PYTHONIC,
    "kimi": KIMI,
}
