"""Random walks through the masks: whatever comes out is read by the parser and fits its schema."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema_rs
import numpy as np
import pytest

from provider.engine.grammars import Held
from provider.toolcalls import CallPolicy, OutputInterpreter
from provider.toolcalls.events import (
    Event,
    Failed,
    Finished,
    StopGeneration,
    TextDelta,
    ToolCallArgumentsDelta,
    ToolCallEnd,
    ToolCallStart,
)
from provider.toolcalls.families import HARMONY_TOKENS
from tests.provider.engine.holding import FAMILIES, Walk, chosen, constraint, grammars, held
from tests.provider.engine.tool_schemas import FUNCTIONS, TOOLS
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

Delivery = Literal["buffered", "whole", "incremental"]
HARMONY_IDS = {text: number for number, (text, _) in HARMONY_TOKENS.items()}
# Left to chance alone, most walks would never close a string.
CLOSERS = ['"', '"}', "}", "]", "}}", "]}", "\n", "</", "</tool_call>", "<tool_call>", "<|call|>", "<|end|>"]
STEPS = 500


@dataclass
class Output:
    """A walk's tokens as the engine would report them, and whether it ended by itself."""

    texts: list[str]
    ids: list[int | None]
    ended: bool
    must_end_at: int | None

    @property
    def text(self) -> str:
        return "".join(self.texts)


def random_output(prepared: Held, vocabulary: Vocabulary, seed: int, *, reluctance: float = 0.5) -> Output:
    """`reluctance`: how often the end is passed over where more may come."""
    chance = random.Random(seed)
    tokenizer = vocabulary.tokenizer
    closing = sorted({token for text in CLOSERS for token in vocabulary.tokens(text)[:1]})
    spelled = {token: text for text, token in vocabulary.ids.items() if tokenizer.is_special_token(token)}
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    steps = Walk(prepared.row(), vocabulary)
    output = Output([], [], ended=False, must_end_at=None)
    for place in range(STEPS):
        flags = steps.allowed()
        may_end = bool(flags[tokenizer.eos_tokens].any())
        flags[tokenizer.eos_tokens] = False
        others = np.flatnonzero(flags)
        assert may_end or others.size
        if not others.size and output.must_end_at is None:
            output.must_end_at = place
        if may_end and (not others.size or chance.random() > reluctance):
            output.ended = True
            return output
        near = [token for token in closing if flags[token]]
        if near and chance.random() < 0.4:
            token = chance.choice(near)
        else:
            token = int(others[chance.randrange(others.size)])
        steps.row.advance(token)
        if token in spelled:
            output.texts.append(decoder.decode(b"") + spelled[token])
            output.ids.append(HARMONY_IDS.get(spelled[token], token))
        else:
            output.texts.append(decoder.decode(tokenizer.decode_bytes([token])))
            output.ids.append(token)
        if spelled.get(token) == "<|call|>":
            output.ended = True
            return output
    return output


def read(output: Output, markup: str, choice: str, *, parallel: bool, delivery: Delivery) -> list[Event]:
    contract: Literal["malibu", "strict"] = "strict" if choice == "none" else "malibu"
    policy = CallPolicy(
        family=FAMILIES[markup],
        tools=FUNCTIONS,
        contract=contract,
        choice=chosen(choice),
        parallel=parallel,
        delivery=delivery,
    )
    return read_with(output, policy)


def read_with(output: Output, policy: CallPolicy) -> list[Event]:
    """What the parser makes of it, stopping the engine where it says so."""
    interpreter = OutputInterpreter(policy)
    events: list[Event] = []
    for text, token in zip(output.texts, output.ids, strict=True):
        events += interpreter.feed(text, token)
        if any(isinstance(event, StopGeneration) for event in events):
            break
    return [*events, *interpreter.finish("stop" if output.ended else "length")]


def calls_of(events: Sequence[Event]) -> list[tuple[str, str]]:
    """The complete calls: names and arguments."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    complete = []
    for event in events:
        if isinstance(event, ToolCallStart):
            names[event.index], arguments[event.index] = event.name, ""
        elif isinstance(event, ToolCallArgumentsDelta):
            arguments[event.index] += event.text
        elif isinstance(event, ToolCallEnd):
            complete.append((names[event.index], arguments[event.index]))
    return complete


def check_fits(name: str, arguments: str) -> None:
    value = json.loads(arguments)
    schema = FUNCTIONS[name]
    if schema is None:
        assert value == {}
    else:
        jsonschema_rs.validator_for(schema, offline=True).validate(value)


CASES: list[Any] = [
    *((markup, small) for markup in ("hermes", "xml") for small in (small_qwen, small_text)),
    ("llama", small_llama),
    ("harmony", small_harmony),
    *(
        pytest.param(markup, large, marks=pytest.mark.slow)
        for markup in ("hermes", "xml")
        for large in (qwen, smollm)
    ),
    pytest.param("llama", smollm, marks=pytest.mark.slow),
    pytest.param("harmony", harmony, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("markup", "vocabulary"), CASES)
class TestWalks:
    def test_a_forced_call_fits(self, markup: str, vocabulary: Any) -> None:
        """Every function by name: one call, of that function, whose arguments fit its schema."""
        words = vocabulary()
        made = grammars(words, markup)
        finished = 0
        for seed, name in enumerate(FUNCTIONS):
            prepared = held(
                made.prepare(constraint(markup, TOOLS, name, parallel=False), reasoning_open=False)
            )
            assert not prepared.loosened, prepared.loosened
            output = random_output(prepared, words, seed)
            events = read(output, markup, name, parallel=False, delivery="incremental")
            assert not any(isinstance(event, Failed) for event in events), (name, output.text, events)
            if not output.ended:
                assert Finished("length") in events
                continue
            finished += 1
            calls = calls_of(events)
            assert [call[0] for call in calls] == [name], output.text
            check_fits(*calls[0])
            assert Finished("tool_calls") in events
        assert finished >= len(FUNCTIONS) * 0.8

    def test_several_calls_of_any_function_fit(self, markup: str, vocabulary: Any) -> None:
        words = vocabulary()
        prepared = held(
            grammars(words, markup).prepare(constraint(markup, TOOLS, "required"), reasoning_open=False)
        )
        total = 0
        for seed in range(20):
            output = random_output(prepared, words, seed, reluctance=0.7)
            events = read(output, markup, "required", parallel=True, delivery="incremental")
            assert not any(isinstance(event, Failed) for event in events), (output.text, events)
            calls = calls_of(events)
            assert calls or not output.ended, output.text
            total += len(calls)
            for call in calls:
                check_fits(*call)
            buffered = read(output, markup, "required", parallel=True, delivery="buffered")
            assert calls_of(buffered) == calls
        assert total >= 20

    def test_auto_gives_text_or_calls_that_fit(self, markup: str, vocabulary: Any) -> None:
        words = vocabulary()
        prepared = held(grammars(words, markup).prepare(constraint(markup, TOOLS), reasoning_open=False))
        for seed in range(30):
            output = random_output(prepared, words, seed, reluctance=0.95)
            events = read(output, markup, "auto", parallel=True, delivery="incremental")
            assert not any(isinstance(event, Failed) for event in events), (output.text, events)
            for call in calls_of(events):
                check_fits(*call)

    def test_a_call_cut_anywhere_ends_in_length(self, markup: str, vocabulary: Any) -> None:
        words = vocabulary()
        prepared = held(
            grammars(words, markup).prepare(constraint(markup, TOOLS, "required"), reasoning_open=False)
        )
        output = random_output(prepared, words, 1, reluctance=0.0)
        for end in range(1, len(output.texts)):
            cut = Output(output.texts[:end], output.ids[:end], ended=False, must_end_at=None)
            events = read(cut, markup, "required", parallel=True, delivery="incremental")
            assert not any(isinstance(event, Failed) for event in events), cut.text
            assert events[-1] in (Finished("length"), Finished("tool_calls")), cut.text
            assert (events[-1] == Finished("tool_calls")) <= bool(calls_of(events)), cut.text

    def test_none_gives_text(self, markup: str, vocabulary: Any) -> None:
        words = vocabulary()
        prepared = held(
            grammars(words, markup).prepare(constraint(markup, TOOLS, "none"), reasoning_open=False)
        )
        for seed in range(30):
            output = random_output(prepared, words, seed, reluctance=0.97)
            events = read(output, markup, "none", parallel=True, delivery="whole")
            assert not any(isinstance(event, Failed | ToolCallStart) for event in events), output.text

    def test_parser_and_grammar_agree_where_a_call_ends(self, markup: str, vocabulary: Any) -> None:
        """Where the grammar lets only the end come, the parser says stop."""
        words = vocabulary()
        for choice in ("required", "auto"):
            prepared = held(
                grammars(words, markup).prepare(
                    constraint(markup, TOOLS, choice, parallel=False), reasoning_open=False
                )
            )
            for seed in range(12):
                output = random_output(prepared, words, seed, reluctance=0.9)
                stopped = self.stops_at(output, markup, choice)
                if output.must_end_at is not None:
                    assert stopped is not None, output.text
                    # A bare function's closer is one end, a stray wrapper's behind it another.
                    behind = "".join(output.texts[stopped:])
                    assert stopped == output.must_end_at or (
                        choice == "auto" and behind.strip() == "</tool_call>"
                    ), (stopped, output.must_end_at, output.text)

    def stops_at(self, output: Output, markup: str, choice: str) -> int | None:
        """How many tokens the parser has read when it wants no more."""
        interpreter = OutputInterpreter(
            CallPolicy(family=FAMILIES[markup], tools=FUNCTIONS, choice=chosen(choice), parallel=False)
        )
        for place, (text, token) in enumerate(zip(output.texts, output.ids, strict=True)):
            if any(isinstance(event, StopGeneration) for event in interpreter.feed(text, token)):
                return place + 1
        return None


@pytest.mark.parametrize("markup", ["hermes", "llama", "harmony"])
def test_answers_by_schema_fit(markup: str) -> None:
    words = {"hermes": small_qwen, "llama": small_llama, "harmony": small_harmony}[markup]()
    for seed, (name, schema) in enumerate(FUNCTIONS.items()):
        if schema is None:
            continue
        prepared = held(
            grammars(words, markup).prepare(constraint(markup, [], answer=schema), reasoning_open=False)
        )
        output = random_output(prepared, words, seed)
        if output.ended:
            events = read(output, markup, "auto", parallel=True, delivery="whole")
            check_fits(name, "".join(event.text for event in events if isinstance(event, TextDelta)))
