"""JSON as it arrives: what passes, what doesn't, and that a cut changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.toolcalls.json_scanner import JsonScanner
from provider.toolcalls.marks import Fault
from tests.suites.formats.answers import strict_json

JSON_TEXT = st.lists(
    st.sampled_from(
        [
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            '"',
            '"a"',
            '"b"',
            "\\",
            "\\n",
            "\\u00e9",
            "\\ud83d",
            "\\ude80",
            "1",
            "-0.5e3",
            "01",
            "true",
            "null",
            "NaN",
            " ",
            "\n",
            "x",
            "é",
            "\t",
            '"a": 1',
            '{"a": []}',
        ]
    ),
    max_size=12,
).map("".join)


def scan(text: str, size: int = 0, depth: int = 64) -> tuple[JsonScanner, str, int]:
    scanner = JsonScanner(depth)
    out, end = [], 0
    for start in range(0, len(text), size or max(1, len(text))):
        piece = text[start : start + (size or len(text))]
        taken = scanner.feed(piece)
        out.append(scanner.take())
        end = start + taken
        if scanner.done or scanner.fault:
            break
    return scanner, "".join(out), end


@settings(max_examples=800, deadline=None)
@given(text=JSON_TEXT, size=st.integers(1, 5))
def test_what_it_takes_is_strict_json_and_all_strict_json_is_taken(text: str, size: int) -> None:
    scanner, out, end = scan(text)
    cut, cut_out, cut_end = scan(text, size)
    assert (cut.done, cut.fault is None) == (scanner.done, scanner.fault is None)
    if scanner.fault is None:
        assert (cut_out, cut_end) == (out, end)
    if scanner.done and scanner.fault is None:
        strict_json(out)
    scanner.finish()
    out += scanner.take()
    whole = scanner.done and scanner.fault is None and not text[end:].strip(" \t\n\r")
    try:
        expected = strict_json(text)
    except ValueError:
        # Raw control characters in strings are the one thing that is mended.
        assert not whole or "\t" in text or "\n" in text
    else:
        assert whole
        assert strict_json(out) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"a": 1,}', Fault.ARGUMENTS),
        ("[1 2]", Fault.ARGUMENTS),
        ("{a: 1}", Fault.ARGUMENTS),
        ("[NaN]", Fault.ARGUMENTS),
        ("[-Infinity]", Fault.ARGUMENTS),
        ("[1.]", Fault.ARGUMENTS),
        ('["\\d"]', Fault.ARGUMENTS),
        ('["\\u12g4"]', Fault.ARGUMENTS),
        ('{"a": 1, "\\u0061": 2}', Fault.REPEATED),
        ("[[[[]]]]", Fault.DEPTH),
        ('{"a": [{"b": {}}]}', Fault.DEPTH),
    ],
)
def test_what_is_refused_and_why(text: str, fault: Fault) -> None:
    assert scan(text, depth=3)[0].fault is fault
    assert scan(text, size=1, depth=3)[0].fault is fault


def test_text_passes_as_it_was_written_but_for_control_characters() -> None:
    text = '{ "k" :\t[1.50, -0, 1E400, "a\x00\x1f\tb\nc\x7f\u2028"] }'
    assert scan(text)[1] == '{ "k" :\t[1.50, -0, 1E400, "a\\u0000\\u001f\\tb\\nc\x7f\u2028"] }'


def test_an_escape_leaves_whole_and_a_surrogate_pair_together() -> None:
    scanner = JsonScanner(4)
    seen = []
    for char in '"\\n\\u00e9\\ud83d\\ude80\\ud83dx"':
        scanner.feed(char)
        seen.append(scanner.take())
    assert [piece for piece in seen if piece] == ['"', "\\n", "\\u00e9", "\\ud83d\\ude80", "\\ud83dx", '"']


@pytest.mark.parametrize("text", [r'"\ud83d\n"', r'"\ud83d\ud83d\ude80"', r'"\ud83d\\"', r'"\ud83d\"x"'])
def test_an_escape_behind_a_lone_surrogate_is_not_lost(text: str) -> None:
    for size in range(1, len(text)):
        scanner, out, _ = scan(text, size)
        assert scanner.done
        assert out == text


def test_it_stops_behind_the_value() -> None:
    assert scan('{"a": {}} and more')[2] == len('{"a": {}}')
    assert scan('"s" x')[2] == 3
    assert scan("12, 13")[2] == 2


@pytest.mark.parametrize("text", ['{"a": 1', '"abc', "[", "tru", '{"a"', ""])
def test_what_breaks_off_is_unfinished_or_wrong(text: str) -> None:
    scanner, _, _ = scan(text)
    scanner.finish()
    assert scanner.fault in (Fault.UNFINISHED, Fault.ARGUMENTS)
    assert not scanner.done


def test_a_number_ends_where_the_text_does() -> None:
    scanner, _, _ = scan("12")
    assert not scanner.done
    scanner.finish()
    assert scanner.done


def test_keys_repeat_in_different_objects_only() -> None:
    value: Any = {"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 1}}
    assert scan(json.dumps(value))[0].done
