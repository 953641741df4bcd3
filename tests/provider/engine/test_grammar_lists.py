"""What each grammar accepts and refuses: every markup, mode, single and parallel, with and without thinking,
where the markup is tokens and where it is text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.provider.engine.holding import constraint, grammars, held, tool, verdict, walk
from tests.provider.engine.vocabularies import (
    Vocabulary,
    harmony,
    qwen,
    small_harmony,
    small_llama,
    small_qwen,
    small_text,
    smollm,
)

WEATHER = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city"],
    },
)
WRITE = tool(
    "fs__write-file",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "lines": {"type": "array"}},
        "required": ["path", "content"],
    },
)
EXIT = tool("Exit", {"type": "object", "properties": {}})
GOAL = tool("get_goal")
TOOLS = [WEATHER, WRITE, EXIT, GOAL]

VOCABULARIES = {
    "small tokens": small_qwen,
    "small text": small_text,
    "small llama": small_llama,
    "small harmony": small_harmony,
    "qwen": qwen,
    "smollm": smollm,
    "harmony": harmony,
}


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def function(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<function={name}>\n{inner}</function>"


def xml(name: str, *parameters: tuple[str, str]) -> str:
    return f"<tool_call>\n{function(name, *parameters)}\n</tool_call>"


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def to(name: str, arguments: str) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"


class Family(NamedTuple):
    """`call`, `other`: two good calls. `calls`: more of them. `bad`: what is no call by any reading."""

    vocabularies: tuple[str, ...]
    call: str
    other: str
    separator: str
    good: tuple[str, ...]
    bad: tuple[str, ...]
    text: tuple[str, ...]
    unfinished: tuple[str, ...]


PARIS = '{"city": "Paris"}'
BOTH = ("small tokens", "small text", "qwen", "smollm")

HERMES = Family(
    BOTH,
    call=hermes("get_weather", PARIS),
    other=hermes("Exit", "{}"),
    separator="\n",
    good=(
        hermes("get_weather", '{"city": "Zürich 🌊", "unit": "celsius", "days": 14}'),
        hermes("get_weather", '{"city": "a \\"quoted\\" \\n name", "days": 1}'),
        hermes(
            "fs__write-file", '{"path": "a", "content": "<function=x> and <b>", "lines": [1, "two", null]}'
        ),
        hermes("get_goal", "{}"),
    ),
    bad=(
        hermes("get_wether", PARIS),
        hermes("get_weather", "{}"),
        hermes("get_weather", '{"city": 3}'),
        hermes("get_weather", '{"city": "Paris", "unit": "kelvin"}'),
        hermes("get_weather", '{"city": "Paris", "days": 15}'),
        hermes("get_weather", '{"city": "Paris", "invented": 1}'),
        hermes("get_weather", '{"city": "Paris"'),
        hermes("get_weather", "null"),
        hermes("Exit", '{"now": true}'),
        '<tool_call>\n{"arguments": {}, "name": "Exit"}\n</tool_call>',
        "<tool_call>\nnothing\n</tool_call>",
    ),
    text=("", "Hello.", "a < b, <tool and </tool_call", "日本 🎉\n\nnext", '{"name": "get_weather"}'),
    unfinished=(
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        "<tool_call>",
        "Text <tool_call>\n",
    ),
)
XML = Family(
    BOTH,
    call=xml("get_weather", ("city", "Paris")),
    other=xml("Exit"),
    separator="\n",
    good=(
        xml("get_weather", ("days", "14"), ("unit", "celsius"), ("city", "")),
        xml(
            "fs__write-file",
            ("path", "a b"),
            ("content", "  if a < b:\n\n\tx = '</p>'\n"),
            ("lines", '[1, "x"]'),
        ),
        xml("fs__write-file", ("content", "a </parameter> inside a line"), ("path", "<parameter name='a'>")),
        "<tool_call>\n<function=fs__write-file>\n<parameter=path>\n</parameter>\n<parameter=content>\n\n</parameter>\n"
        "</function>\n</tool_call>",
        xml("get_goal"),
    ),
    bad=(
        xml("get_wether", ("city", "Paris")),
        xml("get_weather"),
        xml("get_weather", ("unit", "celsius")),
        xml("get_weather", ("city", "Paris"), ("unit", "kelvin")),
        xml("get_weather", ("city", "Paris"), ("days", "many")),
        xml("get_weather", ("city", "Paris"), ("city", "Rome")),
        xml("get_weather", ("city", "Paris"), ("invented", "1")),
        xml("get_weather", ("city", "<parameter=unit>")),
        xml("Exit", ("now", "true")),
    ),
    text=HERMES.text,
    unfinished=("<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "<tool_call>\n<function=Exit>"),
)
LLAMA = Family(
    ("small llama", "small text", "smollm"),
    call=llama("get_weather", PARIS),
    other=llama("Exit", "{}"),
    separator="; ",
    good=(
        llama("get_weather", '{"city": "Zürich 🌊", "unit": "celsius", "days": 14}'),
        llama("get_goal", "{}"),
    ),
    bad=(
        llama("get_wether", PARIS),
        llama("get_weather", "{}"),
        llama("get_weather", '{"city": "Paris", "unit": "kelvin"}'),
        llama("get_weather", '{"city": "Paris", "invented": 1}'),
        '{"parameters": {}, "name": "Exit"}',
        '{"name": "Ada", "age": 36}',
    ),
    text=("", "Hello.", "a { b", '{"age": 36, "name": "Ada"}', 'see {"name": "get_weather"}', "[1, 2]"),
    unfinished=('{"name": "get_weather", "parameters": {"city": "Par',),
)
HARMONY = Family(
    ("small harmony", "harmony"),
    call=to("get_weather", PARIS),
    other=to("Exit", "{}"),
    separator="",
    good=(
        to("get_weather", '{"city":"Zürich 🌊","unit":"celsius"}'),
        to("get_goal", "{}"),
        "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant" + to("Exit", "{}"),
        "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant" + to("Exit", "{}"),
    ),
    bad=(
        to("get_wether", PARIS),
        to("get_weather", "{}"),
        to("get_weather", '{"city": "Paris", "unit": "kelvin"}'),
        to("Exit", "null"),
        "<|channel|>commentary to=browser.open <|constrain|>json<|message|>{}<|call|>",
        "Hello",
    ),
    text=(
        "<|channel|>final<|message|>Hello.",
        "<|channel|>final<|message|>",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello.",
    ),
    unfinished=(
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"',
        "<|channel|>analysis<|message|>Hm.",
    ),
)
MARKUPS = {"hermes": HERMES, "xml": XML, "llama": LLAMA, "harmony": HARMONY}
SLOW = {"qwen", "smollm", "harmony"}


def each_vocabulary() -> Iterator[Any]:
    for markup, family in MARKUPS.items():
        for name in family.vocabularies:
            marks = [pytest.mark.slow] if name in SLOW else []
            yield pytest.param(markup, name, id=f"{markup}, {name}", marks=marks)


@pytest.fixture(params=["one", "several"])
def parallel(request: pytest.FixtureRequest) -> bool:
    return str(request.param) == "several"


@pytest.mark.parametrize(("markup", "vocabulary"), list(each_vocabulary()))
class TestLists:
    def check(
        self,
        markup: str,
        vocabulary: str,
        choice: str,
        parallel: bool,
        *,
        whole: tuple[str, ...] = (),
        begun: tuple[str, ...] = (),
        never: tuple[str, ...] = (),
    ) -> None:
        """`whole`: answers; `begun`: beginnings of answers; `never`: neither."""
        words: Vocabulary = VOCABULARIES[vocabulary]()
        prepared = grammars(words, markup).prepare(
            constraint(markup, TOOLS, choice, parallel=parallel), reasoning_open=False
        )
        for text in whole:
            assert verdict(prepared, words, text) == "whole", text
        for text in begun:
            assert verdict(prepared, words, text) == "begun", text
        for text in never:
            assert verdict(prepared, words, text).startswith("refused"), text

    def test_auto(self, markup: str, vocabulary: str, parallel: bool) -> None:
        family = MARKUPS[markup]
        two = (family.call + family.separator + family.other,) if family.separator else ()
        self.check(
            markup,
            vocabulary,
            "auto",
            parallel,
            whole=(*family.text, family.call, *family.good, *(two if parallel else ())),
            begun=family.unfinished,
            never=(*family.bad, family.call + " and text", *(() if parallel else two)),
        )

    def test_required(self, markup: str, vocabulary: str, parallel: bool) -> None:
        family = MARKUPS[markup]
        two = (family.call + family.separator + family.other,) if family.separator else ()
        self.check(
            markup,
            vocabulary,
            "required",
            parallel,
            whole=(family.call, *family.good, *(two if parallel else ())),
            begun=("",),
            never=(*family.bad, *filter(None, family.text), family.call + " and", *(() if parallel else two)),
        )

    def test_named(self, markup: str, vocabulary: str, parallel: bool) -> None:
        family = MARKUPS[markup]
        again = (family.call + family.separator + family.call,) if family.separator else ()
        self.check(
            markup,
            vocabulary,
            "get_weather",
            parallel,
            whole=(family.call, *(again if parallel else ())),
            begun=("",),
            never=(family.other, *filter(None, family.text), *(() if parallel else again)),
        )

    def test_none(self, markup: str, vocabulary: str, parallel: bool) -> None:
        family = MARKUPS[markup]
        self.check(
            markup,
            vocabulary,
            "none",
            parallel,
            whole=family.text,
            never=(family.call, family.other, *family.good),
        )

    def test_one_call_ends_by_itself(self, markup: str, vocabulary: str) -> None:
        words = VOCABULARIES[vocabulary]()
        for choice in ("auto", "required", "get_weather"):
            prepared = grammars(words, markup).prepare(
                constraint(markup, TOOLS, choice, parallel=False), reasoning_open=False
            )
            steps = walk(prepared, words)
            tokens = words.tokens(MARKUPS[markup].call)
            assert steps.take(tokens) == len(tokens)
            assert steps.must_end() or words.ids.get("<|call|>") == tokens[-1]

    def test_every_prefix_of_a_call_may_go_on(self, markup: str, vocabulary: str) -> None:
        """Cut at every character and tokenised anew, so that tokens of all kinds end anywhere.

        (Token by token the lists above show the same, through the masks.)
        """
        words = VOCABULARIES[vocabulary]()
        family = MARKUPS[markup]
        for choice in ("auto", "required"):
            prepared = grammars(words, markup).prepare(
                constraint(markup, TOOLS, choice), reasoning_open=False
            )
            for text in (family.call, *family.good):
                for cut in range(1, len(text)):
                    if not _inside_token(words, text, cut):
                        tokens = words.tokens(text[:cut])
                        matcher = held(prepared).prototype.deep_copy()
                        assert matcher.try_consume_tokens(tokens) == len(tokens), text[:cut]


def _inside_token(words: Vocabulary, text: str, cut: int) -> bool:
    """Whether the cut would spell out half of a marker that is one token."""
    return any(
        text.startswith(marker, start)
        for marker in words.ids
        if marker.startswith("<") and marker.endswith(">")
        for start in range(max(0, cut - len(marker) + 1), cut)
    )


THOUGHTS = "I could write " + HERMES.call + " but first I think <b>."


@pytest.mark.parametrize(
    ("markup", "vocabulary"),
    [
        pytest.param(markup, name, marks=[pytest.mark.slow] if name in SLOW else [])
        for markup in ("hermes", "xml")
        for name in ("small tokens", "small text", "qwen", "smollm")
    ],
)
class TestThinking:
    """Reasoning is free, whatever it says; the grammar holds what comes behind it."""

    @pytest.mark.parametrize("opened", ["by the prompt", "by the model"])
    def test_it_is_free_and_what_follows_is_held(self, markup: str, vocabulary: str, opened: str) -> None:
        words = VOCABULARIES[vocabulary]()
        family = MARKUPS[markup]
        reasoning_open = opened == "by the prompt"
        head = ("" if reasoning_open else "<think>\n") + THOUGHTS
        made = grammars(words, markup, think=True)
        for choice, whole, never in (
            ("auto", (family.call, "Hello."), (family.bad[0], family.call + " and")),
            ("required", (family.call,), ("Hello.", family.bad[0])),
            ("get_weather", (family.call,), (family.other,)),
            ("none", ("Hello.",), (family.call,)),
        ):
            prepared = made.prepare(constraint(markup, TOOLS, choice), reasoning_open=reasoning_open)
            for text in whole:
                assert verdict(prepared, words, f"{head}\n</think>\n\n{text}") == "whole", (choice, text)
                assert verdict(prepared, words, f"{head}</think>{text}") == "whole", (choice, text)
            for text in never:
                refused = verdict(prepared, words, f"{head}\n</think>\n\n{text}")
                assert refused.startswith("refused"), (choice, text)
            # Reasoning that is never closed may be all there is, unless a call is owed.
            unclosed = verdict(prepared, words, head)
            assert unclosed == ("whole" if choice in ("auto", "none") else "begun"), choice

    def test_a_model_need_not_think(self, markup: str, vocabulary: str) -> None:
        words = VOCABULARIES[vocabulary]()
        family = MARKUPS[markup]
        made = grammars(words, markup, think=True)
        for choice in ("auto", "required"):
            prepared = made.prepare(constraint(markup, TOOLS, choice), reasoning_open=False)
            assert verdict(prepared, words, family.call) == "whole"
            assert verdict(prepared, words, family.bad[0]).startswith("refused")


@pytest.mark.parametrize("vocabulary", ["small tokens", pytest.param("qwen", marks=pytest.mark.slow)])
def test_an_opener_spelled_in_pieces_is_no_text(vocabulary: str) -> None:
    """A parser of text would open a call there that no grammar has checked."""
    words = VOCABULARIES[vocabulary]()
    pieces = [token for piece in ("a <", "tool", "_call") for token in words.tokens(piece)]
    closers = words.tokens(">")
    for choice in ("auto", "none"):
        prepared = grammars(words, "hermes").prepare(
            constraint("hermes", TOOLS, choice), reasoning_open=False
        )
        steps = walk(prepared, words)
        assert steps.take(pieces) == len(pieces)
        assert steps.may_end()
        assert steps.take(closers) == 0
        assert verdict(prepared, words, "a <function ") == "whole"
        assert (verdict(prepared, words, "a <function=") == "begun") is (choice == "auto")


def test_quoted_in_a_fenced_block_markup_is_text() -> None:
    """As the parser has it: from a line that begins with ``` to the next such line."""
    for words in (small_qwen(), small_text()):
        for markup in ("hermes", "xml"):
            prepared = grammars(words, markup).prepare(constraint(markup, TOOLS), reasoning_open=False)
            for quoted in (
                HERMES.call,
                HERMES.bad[0],
                XML.call,
                "<function=x",
                "</tool_call>",
                "<tool_call>",
            ):
                fence = f"So:\n```xml\n{quoted}\n```\n"
                for text in (fence, f"{fence}That is all.", fence[:-5], fence + HERMES.call, f" {fence}"):
                    assert verdict(prepared, words, text) == "whole", text
                assert verdict(prepared, words, fence + HERMES.bad[0]).startswith("refused")
            assert verdict(prepared, words, "a ``` b " + HERMES.bad[0]).startswith("refused")
            assert verdict(prepared, words, "``\n" + HERMES.bad[0]).startswith("refused")
            # Where no call may come at all, none is quoted either.
            prepared = grammars(words, markup).prepare(
                constraint(markup, TOOLS, "none"), reasoning_open=False
            )
            assert verdict(prepared, words, "```\n" + HERMES.call).startswith("refused")


def test_characters_may_be_split_over_tokens() -> None:
    words = small_qwen()
    prepared = grammars(words, "hermes").prepare(constraint("hermes", TOOLS), reasoning_open=False)
    assert len(words.tokens("🍮")) > 1
    assert verdict(prepared, words, "🍮 < 🎉<🐢`日本") == "whole"


def test_models_of_a_family_mix_their_markups_and_bare_functions() -> None:
    for words in (small_qwen(), small_text()):
        for markup in ("hermes", "xml"):
            prepared = grammars(words, markup).prepare(constraint(markup, TOOLS), reasoning_open=False)
            for call in (HERMES.call, XML.call, "Look: " + function("get_weather", ("city", "Paris"))):
                assert verdict(prepared, words, call) == "whole", call
            bad = "Look: " + function("get_wether", ("city", "Paris"))
            assert verdict(prepared, words, bad).startswith("refused")


def test_a_forced_model_writes_what_its_template_taught() -> None:
    words = small_qwen()
    for markup, call, other in (("hermes", HERMES.call, XML.call), ("xml", XML.call, HERMES.call)):
        prepared = grammars(words, markup).prepare(
            constraint(markup, TOOLS, "required"), reasoning_open=False
        )
        assert verdict(prepared, words, call) == "whole"
        assert verdict(prepared, words, other).startswith("refused")


def test_llamas_tag_opens_a_call() -> None:
    words = small_llama()
    prepared = grammars(words, "llama").prepare(constraint("llama", TOOLS), reasoning_open=False)
    assert verdict(prepared, words, "<|python_tag|>" + LLAMA.call) == "whole"
    assert verdict(prepared, words, "Well: <|python_tag|>" + LLAMA.call) == "whole"
    assert verdict(prepared, words, "I look.\n" + LLAMA.call) == "whole"
    assert verdict(prepared, words, "<|python_tag|>import os").startswith("refused")
    assert verdict(prepared, words, "I look.\n" + LLAMA.bad[0]).startswith("refused")


def test_harmony_recipients_in_their_other_places() -> None:
    words = small_harmony()
    prepared = grammars(words, "harmony").prepare(constraint("harmony", TOOLS), reasoning_open=False)
    for call in (
        " to=functions.Exit<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>analysis to=functions.Exit code<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.Exit<|message|>{}<|call|>",
    ):
        assert verdict(prepared, words, call) == "whole", call


ADA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["age"],
}


@pytest.mark.parametrize("markup", list(MARKUPS))
def test_an_answer_by_schema(markup: str) -> None:
    words = VOCABULARIES[MARKUPS[markup].vocabularies[0]]()
    wrap = "<|channel|>final<|message|>{}" if markup == "harmony" else "{}"
    prepared = grammars(words, markup).prepare(constraint(markup, [], answer=ADA), reasoning_open=False)
    assert verdict(prepared, words, wrap.replace("{}", '{"name": "Ada", "age": 36}')) == "whole"
    assert verdict(prepared, words, wrap.replace("{}", '{"age": 36}')) == "whole"
    for text in ('{"name": "Ada"}', "Ada is 36.", '{"age": 36} years', '{"age": "36"}'):
        assert verdict(prepared, words, wrap.replace("{}", text)).startswith("refused"), text
    # With tools beside it: a call or the answer, no text.
    prepared = grammars(words, markup).prepare(constraint(markup, TOOLS, answer=ADA), reasoning_open=False)
    assert verdict(prepared, words, wrap.replace("{}", '{"age": 36}')) == "whole"
    assert verdict(prepared, words, MARKUPS[markup].call) == "whole"
    assert verdict(prepared, words, wrap.replace("{}", "Hello")).startswith("refused")
    # Forced: the call alone.
    prepared = grammars(words, markup).prepare(
        constraint(markup, TOOLS, "required", answer=ADA), reasoning_open=False
    )
    assert verdict(prepared, words, MARKUPS[markup].call) == "whole"
    assert verdict(prepared, words, wrap.replace("{}", '{"age": 36}')).startswith("refused")


def test_an_answer_by_schema_behind_reasoning() -> None:
    for words in (small_qwen(), small_text()):
        made = grammars(words, "hermes", think=True)
        prepared = made.prepare(constraint("hermes", [], answer=ADA), reasoning_open=True)
        assert verdict(prepared, words, 'Hm.\n</think>\n\n{"age": 36}') == "whole"
        assert verdict(prepared, words, "Hm.\n</think>\n\nAda").startswith("refused")
        assert verdict(prepared, words, "Hm.") == "begun"


@pytest.mark.parametrize("count", [1, 2, 3, 8, 64])
def test_any_number_of_parameters_can_be_required(count: int) -> None:
    """An agent's tool to edit a file requires three."""
    names = [f"p{number}" for number in range(count)]
    properties = {name: {"type": "string"} for name in names}
    schema = {"type": "object", "properties": properties, "required": names}
    vocabulary = small_qwen()
    asked = constraint("xml", [tool("f", schema)], strict=True)
    prepared = held(grammars(vocabulary, "xml").prepare(asked, reasoning_open=False))
    assert not prepared.loosened
    parts = [f"<parameter={name}>\nx\n</parameter>\n" for name in reversed(names)]
    for given, wanted in ((parts, True), (parts[1:], False)):
        call = f"<tool_call>\n<function=f>\n{''.join(given)}</function>\n</tool_call>"
        assert (verdict(prepared, vocabulary, call) == "whole") == wanted
