"""The page, driven in Chromium: it talks to the server, and nothing that a model says can act."""

import json
import time

import pytest
from generate_models import byte_tokenizer, calling_model, talking_model

pytest.importorskip("uvicorn")

from serving import running  # noqa: E402

ATTACK = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script> [a](javascript:alert(3)) ![i](http://evil.example/x.png) '
    "**bold**"
)
MARKDOWN = (
    "# T\nan *e* `<b>`\n- a\n  - b\n1. c\n> q\n\n| x | y |\n|---|---|\n| 1 | 2 |\n```py\n<i> **n**\n```\n2 * 3 * \\*4"
)
HTML = (
    '<h1>T</h1><p>an <em>e</em> <code>&lt;b&gt;</code></p><ul dir="auto"><li><p>a</p><ul dir="auto"><li><p>b</p></li>'
    '</ul></li></ul><ol dir="auto" start="1"><li><p>c</p></li></ol><blockquote dir="auto"><p>q</p></blockquote>'
    '<table dir="auto"><tr><th>x</th><th>y</th></tr>'
    "<tr><td>1</td><td>2</td></tr></table><pre><code>&lt;i&gt; **n**</code></pre><p>2 * 3 * *4</p>"
)
COSTLY = [">" * 10**5, "[" * 10**5, "`" * 10**4, "*a" * 10**4, "- " * 5000 + "x", "|" * 5000 + "\n|-|", "```x"]


def speaker(text: str):
    """A model that says one text over and over, and its tokenizer."""
    return talking_model([256]), byte_tokenizer([text.encode()])


def until(browser, script: str) -> object:
    """The value of an expression once it is true."""
    end = time.monotonic() + 30
    while not (value := browser.evaluate(script)):
        assert time.monotonic() < end, (script, browser.evaluate("document.body.innerText"))
        time.sleep(0.03)
    return value


def texts(browser) -> list[str]:
    """The texts of the messages."""
    return browser.evaluate("[...document.querySelectorAll('article .text')].map(e => e.innerText.trim())")


def say(browser, text: str) -> None:
    browser.evaluate("document.getElementById('prompt').focus()")
    browser.call("Input.insertText", text=text)
    browser.call(
        "Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
    )


def set_value(browser, name: str, value: object) -> None:
    browser.evaluate(
        f"(e => {{ e.value = {value!r}; for (const k of ['input', 'change']) e.dispatchEvent(new Event(k)); }})"
        f"(document.getElementById({name!r}))"
    )


def idle(browser) -> None:
    """Wait until no reply is on its way."""
    until(browser, "document.getElementById('stop').hidden && messages.length > 1")


def press(browser, label: str, nth: int = 0) -> None:
    browser.evaluate(
        f"[...document.querySelectorAll('button')].filter(b => b.textContent === {label!r})[{nth}].click()"
    )


def test_a_person_talks_stops_regenerates_and_edits(browser, monkeypatch):
    with running(talking_model(range(97, 123), sequence_len=4096)) as server:
        browser.open(server.address)
        until(browser, "document.getElementById('model').textContent === 'tiny'")
        set_value(browser, "tokens", 8)
        monkeypatch.setattr(server.served.engine.model, "hidden", lambda *_: 1 / 0)
        say(browser, "Hi")
        idle(browser)
        assert "generation failed" in browser.evaluate("document.querySelector('.error').textContent")
        monkeypatch.undo()
        press(browser, "Regenerate")
        until(browser, "!document.querySelector('.error')")
        idle(browser)
        first, reply = texts(browser)
        assert (first, len(reply)) == ("Hi", 8)
        assert "cut off" in browser.evaluate("document.getElementById('log').innerText")

        say(browser, "And\nthen?")
        idle(browser)
        assert [len(text) for text in texts(browser)] == [2, 8, 9, 8]

        press(browser, "Edit")  # the first message: what followed it goes
        browser.evaluate("document.querySelector('article textarea').value = 'Ho'")
        browser.evaluate("document.querySelector('article textarea ~ .tools button.main').click()")
        idle(browser)
        assert texts(browser)[0] == "Ho"
        assert len(texts(browser)) == 2

        set_value(browser, "tokens", 4000)
        say(browser, "More")
        until(browser, "document.querySelectorAll('article.assistant .text')[1]?.textContent.length > 5")
        server.wait(running=1)
        press(browser, "Stop")
        idle(browser)
        server.wait(running=0)  # the server has heard of it
        assert "stopped" in browser.evaluate("document.getElementById('log').innerText")
        assert 5 < len(texts(browser)[3]) < 4000
        assert browser.complaints() == []


def test_an_example_begins_a_chat_that_stays_over_a_reload(browser):
    examples = ["How do you spell kif?", "<b>2</b>?", "What is 1 + 1?"]  # held out from this run
    with running(talking_model(range(97, 123)), examples=examples) as server:
        browser.open(server.address)
        until(browser, "document.querySelectorAll('.examples button').length > 2")
        shown = "[...document.querySelectorAll('.examples button')].map(b => b.textContent)"
        assert browser.evaluate(shown) == examples
        set_value(browser, "tokens", 8)
        press(browser, "How do you spell kif?")
        idle(browser)
        said = texts(browser)
        assert (said[0], len(said[1])) == ("How do you spell kif?", 8)
        browser.open(server.address)
        until(browser, "document.getElementById('model').textContent === 'tiny'")
        assert texts(browser) == said
        assert "of 256 tokens" in browser.evaluate("document.getElementById('log').innerText")
        press(browser, "New chat")
        browser.open(server.address)
        until(browser, "document.querySelectorAll('.examples button').length > 2")
        assert texts(browser) == browser.complaints() == []


def test_a_run_without_examples_shows_none_and_the_header_is_one_line(browser):
    with running(talking_model([97]), attention=False) as server:
        browser.open(server.address)
        until(browser, "document.getElementById('model').textContent === 'tiny'")
        until(browser, "Boolean(document.querySelector('.examples p'))")
        assert browser.evaluate("document.querySelectorAll('.examples button').length") == 0
        browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=800, deviceScaleFactor=1, mobile=False)
        browser.evaluate("document.getElementById('look').hidden = false")
        browser.evaluate("document.getElementById('model').textContent = 'd20-successor-july-n100000-chat'.repeat(3)")
        tops = (
            "new Set([...document.querySelectorAll('header > :not([hidden])')].map(e => Math.round(e.offsetTop / 9)))"
        )
        assert browser.evaluate(f"{tops}.size") == 1
        assert browser.evaluate("document.documentElement.scrollWidth") <= 1280


def test_what_a_model_says_is_shown_as_markdown_and_cannot_act(browser):
    model, tokenizer = speaker(ATTACK)
    with running(model, tokenizer) as server:
        browser.open(server.address)
        set_value(browser, "tokens", 1)
        say(browser, ATTACK)
        idle(browser)
        until(browser, "document.querySelector('article.assistant strong')?.textContent === 'bold'")
        user, reply = texts(browser)
        assert user == ATTACK
        assert reply.startswith('<img src=x onerror="alert(1)"><script>alert(2)</script> [a](javascript:alert(3)) ')
        assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
        links = browser.evaluate("[...document.querySelectorAll('main a')].map(a => [a.href, a.target, a.rel])")
        assert links == [["http://evil.example/x.png", "_blank", "noopener noreferrer"]]
        rendered = "(t => { const e = document.createElement('div'); e.append(...blocks(t)); return e.innerHTML; })"
        assert browser.evaluate(f"{rendered}({json.dumps(MARKDOWN)})") == HTML
        took = browser.evaluate(f"[performance.now(), {json.dumps(COSTLY)}.map(blocks), performance.now()]")
        assert took[2] - took[0] < 5000  # milliseconds
        # Should markup get into the page nevertheless, its policy keeps it from acting.
        browser.evaluate("document.querySelector('main').innerHTML = '<img src=x onerror=\"window.acted = 1\">'")
        browser.evaluate("new Promise((done) => setTimeout(done, 100))")
        assert browser.evaluate("window.acted === undefined")
        assert [url for url in browser.complaints() if isinstance(url, str)] == []


def test_a_call_of_the_calculator_is_shown_and_sent_back(browser):
    with running(calling_model(sequence_len=256)) as server:
        browser.open(server.address)
        set_value(browser, "temperature", 0)
        for prompt in ("Hi", "Ho"):
            say(browser, prompt)
            idle(browser)
        assert texts(browser)[1].split("\n\n") == ["12*3 → 36", "yes"]
        sent = browser.evaluate("request()[1].messages[1].content.map((part) => [part.type, part.text])")
        assert sent == [["python", "12*3"], ["python_output", "36"], ["text", "yes"]]
        assert browser.complaints() == []


# Safari ends the composition before the keydown of the Enter that confirms a word, and gives the key code 229.
CONFIRM = """(p => { p.focus(); p.value = '日本';
    p.dispatchEvent(new CompositionEvent('compositionend', {data: '日本', bubbles: true}));
    p.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', keyCode: 229, bubbles: true, cancelable: true}));
    return [messages.length, p.value]; })(document.getElementById('prompt'))"""
# x of the first and the last character of an element's text.
ENDS = """((selector) => { let n = document.querySelector(selector); while (n.firstChild) n = n.firstChild;
    const x = (i) => { const r = document.createRange(); r.setStart(n, i); r.setEnd(n, i + 1);
        return r.getBoundingClientRect().x; };
    return [x(0), x(n.length - 1)]; })"""
RIGHT_TO_LEFT = """messages = [{role: 'user', content: 'מה שלומך?'}, {role: 'assistant', content:
    'טוב מאוד!\\n\\n- אחד\\n\\n```\\nx = מה?\\n```', finish: 'stop'}]; draw()"""


def test_all_scripts_can_be_typed_read_and_copied(browser):
    with running(talking_model([97])) as server:
        browser.open(server.address)
        until(browser, "document.getElementById('model').textContent === 'tiny'")
        assert browser.evaluate(CONFIRM) == [0, "日本"]  # the Enter that confirms a word does not send it
        browser.evaluate(RIGHT_TO_LEFT)
        for place in ("article.user .text", "article.assistant p", "article.assistant li"):
            first, last = browser.evaluate(f"{ENDS}('{place}')")
            assert first > last, place
        first, last = browser.evaluate(f"{ENDS}('article.assistant pre code')")
        assert first < last
        press(browser, "Edit")
        escape = "document.querySelector('article textarea').dispatchEvent(new KeyboardEvent('keydown', {0}))"
        # The first Escape ends the input of a word, the second the edit.
        for options, left in (("{key: 'Escape', keyCode: 229}", 1), ("{key: 'Escape'}", 0)):
            browser.evaluate(escape.format(options))
            assert browser.evaluate("document.querySelectorAll('article textarea').length") == left
        # Plain HTTP from another machine has no clipboard; the text is copied all the same, and the page says so.
        browser.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined}); window.copied = ''")
        browser.evaluate("addEventListener('copy', () => { copied = document.activeElement.value; })")
        browser.mouse("click", "article.assistant .tools button:last-child")
        until(browser, "document.getElementById('said').textContent === 'Copied.'")
        assert browser.evaluate("copied").startswith("טוב מאוד!")
        assert browser.complaints() == []


def test_a_base_model_continues_and_a_key_is_asked_for(browser):
    model, tokenizer = speaker("<b>x</b> **not bold**\n")
    with running(model, tokenizer, chats=False, api_key="k") as server:
        browser.open(server.address)
        until(browser, "document.getElementById('about').textContent.includes('the API key is wrong or missing')")
        assert not browser.evaluate("document.getElementById('settings').hidden")
        set_value(browser, "key", "k")
        until(browser, "document.getElementById('about').textContent.includes('continues text')")
        set_value(browser, "tokens", 2)
        say(browser, "Once")
        idle(browser)
        assert texts(browser) == ["Once", "<b>x</b> **not bold**\n<b>x</b> **not bold**"]
