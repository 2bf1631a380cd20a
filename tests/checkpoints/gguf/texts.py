"""Texts in which splittings, byte fallback and control tokens differ from each other."""

# ruff: noqa: RUF001

TEXTS = (
    "",
    " ",
    "Hello world",
    "  two  spaces,\ttabs\t\t and\n\n\nlines \n \r\n\n ",
    "1 12 123 1234 12345 1234567890123 3.14159 1,000,000 0x1F ½ Ⅷ ٣٤٥ ４５",
    "I'm you're he'S SHE'LL we'd THEY'VE don't 'tis rock'n'roll ''s \u2019s",
    "naïve café cafe\u0301 A\u030angstro\u0308m Straße ﬁ ǅ",
    "你好，世界。今天天气很好！日本語のテキスト、カタカナ 한국어 문장",
    "🦊🏽👩\u200d👩\u200d👧\u200d👦🇩🇪❤\ufe0f\u200d x\u200by\ufeff",
    "مرحبا بالعالم، كيف الحال؟ हिन्दी में लिखा पाठ। ไทย עברית",
    "def f(x):\n    return {'a': x[0] ** 2}  # ok\n\n\n\tif a != b: pass;;",
    "camelCaseWord HTTPServer snake_case_word UPPER lower iPhone15ProMax",
    "a/b\\c <b>&amp;</b> $5.00 50% #tag @me ~`^|+-=*",
    "x" * 70 + " " * 20 + "=" * 40,
    "\x00\x01\x7f\x80ÿ",
    "<s>x</s> <|im_start|>user\nHi<|im_end|>\n<|endoftext|><think> </think><｜User｜>",
    "ends in a space ",
    " begins with one",
)
