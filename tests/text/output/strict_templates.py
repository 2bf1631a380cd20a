"""Short chat templates that refuse turns, with the rules of public ones."""

from typing import Final

TOOL_LIST = "{{ bos_token }}{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}"
CALLS = "{% for c in m.tool_calls %}[CALL]{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
TURN = "[{{ m.role }}]{{ m.content }}" + CALLS
NINE_LETTERS = "{{ raise_exception('ids have nine letters') }}"
GEMMA = (  # alternates, knows neither a system message nor tools
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
)
ALTERNATES = (  # calls and results do not count
    "{% set found = namespace(num=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (found.num % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set found.num = found.num + 1 %}{% endif %}"
)
REST = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% for m in rest %}{% if m.role == 'system' %}{{ raise_exception('system first') }}{% endif %}{% endfor %}"
)
MINISTRAL = (  # and an answer has a text or calls
    TOOL_LIST + REST + "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}" + ALTERNATES
    + "{% if m.role == 'assistant' and not m.content and not m.tool_calls %}"
    "{{ raise_exception('an answer has content or calls') }}{% endif %}" + TURN + "{% endfor %}"
)  # fmt: skip
NEMO = (  # ids of nine letters; the system message is in the last turn, if that is a user's
    TOOL_LIST + REST + ALTERNATES
    + "{% if m.role == 'tool' and (m.tool_call_id is not defined or m.tool_call_id | length != 9) %}" + NINE_LETTERS
    + "{% endif %}{% for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}" + NINE_LETTERS
    + "{% endif %}{% endfor %}{% if loop.last and m.role == 'user' and rest | length < messages | length %}"
    "{{ messages[0].content }}{% endif %}" + TURN + "{% endfor %}"
)  # fmt: skip
RESULTS = "{% set found = namespace(has=false) %}{% for m in messages %}"
NO_CALLS = "{% if m.role == 'tool' and not found.has %}{{ raise_exception('no calls before this result') }}{% endif %}"
GPT_OSS = (  # a result belongs to the last answer's calls
    TOOL_LIST + RESULTS + "{% if m.role == 'assistant' %}{% set found.has = m.tool_calls | length > 0 %}{% endif %}"
    + NO_CALLS + TURN + "{% endfor %}"
)  # fmt: skip
APERTUS = (  # a result follows an answer
    TOOL_LIST + RESULTS + "{% if m.role != 'tool' %}{% set found.has = m.role == 'assistant' %}{% endif %}"
    + NO_CALLS + TURN + "{% endfor %}"
)  # fmt: skip
LEFT_OUT = (  # a result is left out where it does not follow calls
    TOOL_LIST + RESULTS + "{% if m.role != 'tool' %}{% set found.has = m.tool_calls | length > 0 %}{% endif %}"
    "{% if m.role != 'tool' or found.has %}" + TURN + "{% endif %}{% endfor %}"
)
QWEN35 = (  # there is a user's message
    TOOL_LIST + "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('no user query') }}{% endif %}{% for m in messages %}" + TURN + "{% endfor %}"
)
LLAMA = (  # with tools, the first message after the system's is taken for a user's; one call a turn
    "{% set first = 1 if messages[0].role == 'system' else 0 %}{% if first %}{{ messages[0].content }}{% endif %}"
    "{% if tools %}{{ tools | tojson }}{% if messages | length == first %}{{ raise_exception('no user') }}{% endif %}"
    "[user]{{ messages[first].content }}{% set first = first + 1 %}{% endif %}"
    "{% for m in messages[first:] %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call only') }}{% endif %}"
    + TURN + "{% endfor %}"
)  # fmt: skip
FIRST_ONLY = (  # the first developer's message and the first call are shown; calls have no content, tools a description
    "{{ bos_token }}{% for t in tools or [] %}[{{ t.function.name + ': ' + t.function.description }}]{% endfor %}"
    "{% set first = 1 if messages[0].role in ('system', 'developer') else 0 %}{% if first %}{{ messages[0].content }}"
    "{% endif %}{% for m in messages[first:] %}{% if m.tool_calls %}"
    "{% if m.content is defined %}{{ raise_exception('calls stand alone') }}{% endif %}{% set c = m.tool_calls[0] %}"
    "{{ m.reasoning_content }}[CALL]{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% elif m.role in ('user', 'assistant', 'tool') %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
STRICT: Final = {
    "gemma": GEMMA, "ministral": MINISTRAL, "nemo": NEMO, "gpt_oss": GPT_OSS, "apertus": APERTUS, "left_out": LEFT_OUT,
    "qwen35": QWEN35, "llama": LLAMA, "first_only": FIRST_ONLY,
}  # fmt: skip
