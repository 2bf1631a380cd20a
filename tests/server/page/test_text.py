"""Answers as Markdown in a real browser, while they grow."""

import io

import pytest

pytest.importorskip("playwright")
pytest.importorskip("forerun.server.app")

from playwright.sync_api import Page, expect

from tests.server.page.browsing import CHROMIUM, ask, choose

pytestmark = [pytest.mark.page, pytest.mark.skipif(CHROMIUM is None, reason="no browser is installed")]


CODE = """def find(a):  # what: 'it' does
    \"\"\"one
two\"\"\"
    return '#3', 42, None, 0x1f, defer
"""

MARKDOWN = """# Head

A *word*, a **strong _one_**, `code * here`, snake_case_name, 2 * 3 * 4 and [a link](https://example.com/a).
<img src=x onerror="window.isBroken = true"> [bad](javascript:alert(1))

- one
- two
  - deeper

- after an empty line
- last

1. first

2. second

```python
def f(x):
    return x  # a comment
```

| a | b |
|---|--:|
| 1 | **2** |

3. third

> quoted
> twice

The cost is $5 and $6, a sum of $a_1 + \\frac{1}{2}$ &amp; *more*, by [name][1].

\\[ x^2 \\]

[1]: https://example.com/b
"""


def test_text_that_grows_piece_by_piece_ends_as_when_it_is_shown_at_once(page: Page) -> None:
    shown = page.evaluate(
        """async (source) => {
          const { Rendered } = await import("/page/markdown.js");
          const marks = [...source].map((_, i) => ({ end: i + 1, by: "draft", round: i }));
          const whole = document.createElement("div");
          new Rendered(whole).rebuild(source, marks);
          const plain = document.createElement("div");
          new Rendered(plain).rebuild(source, null);
          const grown = [1, 2, 3, 5, 7].map((step) => {
            const into = document.createElement("div");
            const rendered = new Rendered(into);
            for (let end = step; end < source.length; end += step)
              rendered.update(source.slice(0, end), marks.slice(0, end - (step % 3))); // marks may come later
            rendered.update(source, marks);
            return into.innerHTML;
          });
          const same = whole.textContent === plain.textContent;
          const rounds = [...whole.querySelectorAll(".by:not(.formula)")];
          const isWrong = ({ dataset, textContent }) => source[Number(dataset.round)] !== textContent;
          const wrong = rounds.filter(isWrong).map((each) => each.outerHTML);
          return { whole: whole.innerHTML, grown, same, plain: plain.innerHTML, wrong };
        }""",
        MARKDOWN,
    )
    assert shown["grown"] == [shown["whole"]] * 5
    assert shown["same"]
    assert shown["wrong"] == []
    assert "<strong>strong <em>one</em></strong>" in shown["plain"]
    assert "<li>deeper</li>" in shown["plain"]
    assert "snake_case_name, 2 * 3 * 4" in shown["plain"]
    assert 'href="https://example.com/a" target="_blank" rel="noopener noreferrer"' in shown["plain"]
    assert '<td align="right">' in shown["plain"]
    assert '<ol start="3">' in shown["plain"]
    assert "&lt;img" in shown["plain"]
    assert "<img" not in shown["whole"] + shown["plain"]
    assert 'href="javascript' not in shown["whole"] + shown["plain"]


def test_what_a_user_writes_never_becomes_markup(page: Page) -> None:
    choose(page, max_tokens="2")
    text = '<img src=x onerror="window.isBroken = true"><b>bold</b>'
    ask(page, text)
    expect(page.locator(".user .text")).to_have_text(text)
    assert page.evaluate("window.isBroken") is None


def test_code_has_colours_that_leave_its_text_and_tokens_alone(page: Page) -> None:
    found = page.evaluate(
        """async (source) => {
          const { Rendered } = await import("/page/markdown.js");
          const marks = [...source].map((_, i) => ({ end: i + 1, by: "draft", round: i }));
          const into = document.createElement("div");
          document.querySelector("#messages").replaceChildren(into);
          const rendered = new Rendered(into);
          for (let end = 9; end < source.length; end += 9) {
            rendered.update(source.slice(0, end), marks);
            await new Promise(requestAnimationFrame);
          }
          rendered.update(source, marks);
          await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          const words = {};
          for (const [name, ranges] of CSS.highlights) {
            words[name] = [...ranges].map(({ startContainer, startOffset, endContainer, endOffset }) => {
              const range = new Range();
              range.setStart(startContainer, startOffset);
              range.setEnd(endContainer, endOffset);
              return range.toString();
            });
          }
          const code = into.querySelector("code");
          return { words, text: code.textContent, spans: code.querySelectorAll(".by").length };
        }""",
        f"```python\n{CODE}```\n\nafterwards",
    )
    assert found["text"].rstrip() == CODE.rstrip()
    assert found["spans"] == len(found["text"])
    assert found["words"] == {
        "code-keyword": ["def", "return", "None"],
        "code-comment": ["# what: 'it' does"],
        "code-string": ['"""one\ntwo"""', "'#3'"],
        "code-number": ["42", "0x1f"],
        "code-title": ["find"],
    }


HOSTILE = [
    "<script>window.isBroken = true</script>",
    "<img src=x onerror='window.isBroken = true'>",
    "[a](javascript:window.isBroken=true)",
    "[a](<java\nscript:window.isBroken=true>)",
    "[a](data:text/html,<script>window.isBroken=true</script>)",
    '[a](https://x.example/"onclick="window.isBroken=true)',
    '![a"onerror="window.isBroken=true](https://x.example/p.png)',
    '```"><img/src=x/onerror=window.isBroken=true>\ncode\n```',
    "$\\href{javascript:window.isBroken=true}{x}$",
    "$\\includegraphics{https://x.example/p.png}$",
    "$$\\def\\a{\\a\\a}\\a$$",
    "<https://x.example/<img src=x onerror=window.isBroken=true>>",
    ">" * 900,
    ">" * 3000,
    "- " * 1500,
    "*a_" * 500,
]


@pytest.mark.parametrize("source", HOSTILE)
def test_no_answer_becomes_markup_or_an_address_of_another_kind(page: Page, source: str) -> None:
    found = page.evaluate(
        """async (source) => {
          const { Rendered } = await import("/page/markdown.js");
          const into = document.createElement("div");
          const other = document.createElement("div");
          document.querySelector("#messages").replaceChildren(into, other);
          new Rendered(other).rebuild("$x$", null); // so that Temml comes
          new Rendered(into).rebuild(source, null);
          while (!globalThis.temml) await new Promise(requestAnimationFrame);
          await new Promise((done) => setTimeout(done, 50));
          const names = [...into.querySelectorAll("*")].map((each) => each.localName);
          const attributes = [...into.querySelectorAll("*")].flatMap((each) => each.getAttributeNames());
          const addresses = [...into.querySelectorAll("[href]")].map((each) => each.getAttribute("href"));
          return { names, attributes, addresses };
        }""",
        source,
    )
    assert page.evaluate("window.isBroken") is None
    assert not {"script", "img", "iframe", "style", "svg", "form", "input"} & set(found["names"])
    assert not [name for name in found["attributes"] if name.startswith("on")]
    assert all(address.startswith(("https:", "http:", "mailto:")) for address in found["addresses"])


def test_a_formula_is_drawn_and_has_the_colour_of_who_wrote_most_of_it(page: Page) -> None:
    found = page.evaluate(
        """async () => {
          const { Rendered } = await import("/page/markdown.js");
          const into = document.createElement("div");
          document.querySelector("#messages").replaceChildren(into);
          const source = "So $a_1 + \\\\frac{b}{2}$ is it, for $5 and $6.";
          const marks = [{ end: 6, by: "draft", round: 0 }, { end: 40, by: "lookup", round: 1 }];
          new Rendered(into).rebuild(source, marks);
          while (!into.querySelector("math")) await new Promise(requestAnimationFrame);
          const { className } = into.querySelector(".formula");
          return { className, fractions: into.querySelectorAll("mfrac").length, text: into.textContent };
        }"""
    )
    assert found["className"] == "formula by by-lookup"
    assert found["fractions"] == 1
    assert "for $5 and $6." in found["text"]


def test_the_line_below_a_token_stands_clear_of_underscores(page: Page) -> None:
    image = pytest.importorskip("PIL.Image")
    page.evaluate(
        """async () => {
          const { Rendered } = await import("/page/markdown.js");
          const into = document.createElement("div");
          into.className = "text";
          document.querySelector("#messages").replaceChildren(into);
          new Rendered(into).rebuild("```\\n____\\n```", [{ end: 20, by: "draft", round: 0 }]);
        }"""
    )
    box = page.locator(".by").first.bounding_box()
    assert box is not None
    clip = {"x": box["x"] + 2, "y": box["y"], "width": 4, "height": box["height"] + 1}
    shot = image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    ground = shot.getpixel((1, 1))
    rows = [shot.getpixel((1, y)) != ground for y in range(shot.height)]
    inked = "".join("#" if row else " " for row in rows).strip()
    assert len(inked.split()) == 2, inked  # the underscore, ground, the line
