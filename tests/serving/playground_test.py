"""The playground in a browser shows the server's probabilities, and treats generated text only as text."""

import json
import math

import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import requests  # noqa: E402

from evaluation.models import TOKENIZER, plan_of  # noqa: E402
from serving.browser import CHROMIUM, browser  # noqa: E402
from serving.chat_test import WRITER  # noqa: E402
from serving.serve_test import LIMITS, listening  # noqa: E402
from trivium.evaluation.answer import NativeScorer  # noqa: E402
from trivium.model.whole import WholeModel  # noqa: E402
from trivium.serving.writer import Writer  # noqa: E402
from trivium.tokens.tokenizer import Tokenizer  # noqa: E402

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}")
EVIL = "<script>window.ran='it';</script><img/src=x/onerror=\"window.ran='it'\">"
TOKENS = "[...document.querySelectorAll('#text span')].map((s) => [s.textContent, s.title, s.className])"


@pytest.fixture(scope="module")
def page():
    with browser() as found:
        yield found


def in_love_with(word):
    """Return a writer whose model always prefers this word."""
    tree = json.loads(TOKENIZER.description)
    number = TOKENIZER.vocabulary
    tree["added_tokens"].append(
        {"id": number, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False}
    )  # fmt: skip
    plan = plan_of(sequence=96, model={"vocabulary": number + 1})
    model = WholeModel(plan.model, precision="fp32", device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    for name, row in model.stage.table.items():
        model.load(name, torch.randn(row.shape, generator=generator) * 0.3)
    with torch.no_grad():
        head, embedding = model.stage.head, model.stage.embedding
        head.norm.bias.copy_(20 * embedding.tokens.weight[number])
    return Writer(NativeScorer(model, Tokenizer(json.dumps(tree))))


def write(page, prompt, tokens):
    fields = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 1}
    page.ask("".join(f"at({json.dumps(k)}).value = {json.dumps(v)};" for k, v in fields.items()))
    page.ask("at('write').click()")
    page.wait_for("!at('write').disabled")
    assert page.ask("at('problem').textContent") == ""


def test_completion_shows_probabilities(page):
    with listening(LIMITS) as (url, _):
        page.go(url + "/")
        write(page, "Item 7 opens", 6)
        asked = {"prompt": "Item 7 opens", "max_tokens": 6, "temperature": 0, "seed": 1, "logprobs": 5}
        told = requests.post(f"{url}/v1/completions", json=asked, timeout=30).json()["choices"][0]["logprobs"]
        shown = page.ask(TOKENS)
        assert [text for text, _, _ in shown] == told["tokens"] and len(shown) == 6
        for (_, title, kind), log in zip(shown, told["token_logprobs"]):
            p = math.exp(log)
            assert title == f"{100 * p:.2f} %"
            assert kind == ("p4" if p >= 0.5 else "p3" if p >= 0.1 else "p2" if p >= 0.01 else "p1")
        page.ask("document.querySelectorAll('#text span')[2].click()")
        rows = page.ask("[...document.querySelectorAll('#others tr')].map((r) => r.textContent)")
        best = sorted(told["top_logprobs"][2].items(), key=lambda item: -item[1])
        assert rows == [f"{json.dumps(t, ensure_ascii=False)}{100 * math.exp(p):.2f} %" for t, p in best]
        assert page.ask("at('text').textContent") == "Item 7 opens" + "".join(told["tokens"])


def test_partial_characters_are_shown_as_one(page):
    with listening(LIMITS) as (url, _):
        page.go(url + "/")
        told = [
            ("😀 n", [("<token 1>", 0.5, 0), ("<token 2>", 0.5, 0), ("<token 3>", 0.8, 0), (" n", 0.9, 1)]),
            ("äé", [("<token 4>", 0.1, 3), ("<token 5>", 0.5, 3), ("<token 6>", 0.5, 4), ("<token 7>", 0.5, 4)]),
            ("", [("<|end|>", 0.7, 5)]),
        ]
        for text, tokens in told:
            spelt, likely, places = map(list, zip(*tokens, strict=True))
            logs = [math.log(p) for p in likely]
            tops = [{token: log} for token, log in zip(spelt, logs, strict=True)]
            logprobs = {"tokens": spelt, "token_logprobs": logs, "top_logprobs": tops, "text_offset": places}
            page.ask(f"show({json.dumps({'text': text, 'logprobs': logprobs})})")
        shown = [[text, title] for text, title, _ in page.ask(TOKENS)]
        assert shown == [
            ["😀", "20.00 %"],
            [" n", "90.00 %"],
            ["ä", "5.00 %"],
            ["é", "25.00 %"],
            ["<|end|>", "70.00 %"],
        ]
        page.ask("document.querySelectorAll('#text span')[2].click()")
        rows = page.ask("[...document.querySelectorAll('#others tr')].map((r) => r.textContent)")
        assert rows == ['"<token 4>"10.00 %', '"<token 5>"50.00 %']


def test_page_shows_exactly_the_response_text(page):
    with listening(LIMITS) as (url, _):
        page.go(url + "/")
        parts = 0
        for seed in range(6):
            page.ask(f"at('temperature').value = 3; at('top_p').value = 1; at('seed').value = {seed}")
            page.ask("at('prompt').value = 'é文'; at('max_tokens').value = 24; at('write').click()")
            page.wait_for("!at('write').disabled")
            asked = {"prompt": "é文", "max_tokens": 24, "temperature": 3, "top_p": 1, "seed": seed, "logprobs": 5}
            answer = requests.post(f"{url}/v1/completions", json=asked, timeout=30).json()["choices"][0]
            tokens = answer["logprobs"]["tokens"]
            parts += sum(token.startswith("<token") for token in tokens)
            end = tokens[-1] if tokens[-1] == "<|endoftext|>" else ""
            assert page.ask("at('text').textContent") == "é文" + answer["text"] + end
        assert parts, "no part of a character was drawn"


def test_tokens_are_accessible_by_keyboard_with_legend(page):
    with listening(LIMITS) as (url, _):
        page.go(url + "/")
        write(page, "Item 7 opens", 4)
        assert page.ask("[...document.querySelectorAll('#text span')].map((s) => s.tabIndex)") == [0, -1, -1, -1]
        page.ask("document.querySelector('#text span').focus()")
        first = page.ask("at('others').textContent")
        press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: '%s', bubbles: true}))"
        at = "[...document.querySelectorAll('#text span')].indexOf(document.activeElement)"
        for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowLeft", 0), ("ArrowLeft", 0)):
            page.ask(press % key)
            assert page.ask(at) == place
        assert first and page.ask("at('others').textContent") == first
        kinds = page.ask("[...document.querySelectorAll('p span[class]')].map((s) => s.className)")
        assert kinds == ["p4", "p3", "p2", "p1"]


def test_generated_markup_is_not_executed(page):
    with listening(LIMITS, in_love_with(EVIL)) as (url, _):
        page.go(url + "/")
        write(page, EVIL + "Item", 3)
        shown = page.ask(TOKENS)
        assert [text for text, _, _ in shown] == [EVIL] * 3  # so it is one token and was generated
        page.ask("document.querySelectorAll('#text span')[0].click()")
        assert EVIL[:8] in page.ask("at('others').textContent")
        assert page.ask("at('text').textContent") == EVIL + "Item" + 3 * EVIL
        assert page.ask("document.querySelectorAll('#text script, #text img, #others script, #others img').length") == 0
        assert page.ask("typeof window.ran") == "undefined"


def test_errors_are_shown_and_page_stays_usable(page):
    with listening(LIMITS) as (url, _):
        page.go(url + "/")
        page.ask(f"at('max_tokens').value = {LIMITS.max_tokens + 1}; at('write').click()")
        page.wait_for("!at('write').disabled")
        assert f"{LIMITS.max_tokens + 1} is more than {LIMITS.max_tokens}" in page.ask("at('problem').textContent")
        # By the policy, a script that got into the page would not run.
        page.ask(
            "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
        )
        assert page.ask("typeof window.ran") == "undefined"


SHOWN_TURNS = "[...document.querySelectorAll('.turn')].map((t) => [t.className, t.textContent])"


def talk(page, message, **settings):
    fields = {"max_tokens": 8, "temperature": 0.8, "top_p": 1, "seed": 1, "message": message} | settings
    page.ask("".join(f"at({json.dumps(k)}).value = {json.dumps(v)};" for k, v in fields.items()))
    press = "at('message').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
    page.ask(press)
    page.wait_for("!at('send').disabled")


def test_chat_shows_the_servers_answers_to_the_whole_conversation(page):
    with listening(LIMITS, WRITER) as (url, _):
        page.go(url + "/")
        page.ask("at('system').value = 'Be brief.'")
        messages, shown = [{"role": "system", "content": "Be brief."}], []
        for said in ("Item 7?", "And <b>8</b>?"):
            talk(page, said)
            messages.append({"role": "user", "content": said})
            asked = {"messages": messages, "max_tokens": 8, "temperature": 0.8, "top_p": 1, "seed": 1}
            answer = requests.post(f"{url}/v1/chat/completions", json=asked, timeout=30).json()["choices"][0]["message"]
            messages.append({"role": "assistant", "content": answer["content"]})
            shown += [["turn user", said], ["turn assistant", answer["content"]]]
            assert page.ask(SHOWN_TURNS) == shown and page.ask("at('message').value") == ""
        assert page.ask("document.querySelectorAll('.turn b').length") == 0
        page.ask("at('clear').click()")
        assert page.ask(SHOWN_TURNS) == [] and page.ask("turns.length") == 0


def test_chat_returns_a_refused_message_and_goes_on(page):
    with listening(LIMITS, WRITER) as (url, _):
        page.go(url + "/")
        long = "x " * 200
        talk(page, long)
        assert "are more than the model's" in page.ask("at('problem').textContent")
        assert page.ask(SHOWN_TURNS) == [] and page.ask("at('message').value") == long
        talk(page, "Item 7?")
        assert page.ask("at('problem').textContent") == "" and len(page.ask(SHOWN_TURNS)) == 2
