"""Answers as Markdown in a real browser, while they grow."""

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
|---|---|
| 1 | **2** |

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
