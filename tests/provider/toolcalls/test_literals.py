"""Python literals as JSON, without Python evaluating anything."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.toolcalls.literals import LiteralError, number, to_json
from provider.toolcalls.marks import Fault

LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, min_size=2, max_size=3).map(tuple)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(LITERALS)
def test_what_python_writes_is_read(value: object) -> None:
    assert json.loads(to_json(repr(value), 32)) == json.loads(json.dumps(value))


@settings(max_examples=400, deadline=None)
@given(st.text("'\"\\nrxu0123456789abf{}[](),: TrueNone-.eE\n", max_size=20))
def test_what_is_read_is_what_python_means(text: str) -> None:
    try:
        read = to_json(text, 32)
    except LiteralError:
        return
    try:
        meant = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        # More is taken than Python takes: a line break in a plain string, a leading zero, JSON's words.
        json.loads(read)
        return
    if not isinstance(meant, bytes | set | complex):
        assert json.loads(read) == json.loads(json.dumps(meant))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("'a' ", '"a"'),
        ("'''two\nlines'''", '"two\\nlines"'),
        (r"r'\d+'", r'"\\d+"'),
        (r"'\d'", r'"\\d"'),
        (r"'\x41\u00e9\U0001F680\101'", '"Aé🚀A"'),
        (r"'\ud83d\ude80'", '"🚀"'),
        ("(1,)", "[1]"),
        ("(1)", "1"),
        ("[1, 2,]", "[1, 2]"),
        ("{'a': {'b': ()}}", '{"a": {"b": []}}'),
        ("12345678901234567890", "12345678901234567890"),
        ("true", "true"),
    ],
)
def test_what_models_write(text: str, expected: str) -> None:
    assert to_json(text, 32) == expected


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[[1]]]", Fault.DEPTH),
        ("{'a': 1, 'a': 2}", Fault.REPEATED),
        ("{1: 2}", Fault.ARGUMENTS),
        ("{'a'}", Fault.ARGUMENTS),
        ("[1 2]", Fault.ARGUMENTS),
        ("[,]", Fault.ARGUMENTS),
        ("'open", Fault.ARGUMENTS),
        ("open", Fault.ARGUMENTS),
        ("__import__('os')", Fault.ARGUMENTS),
        ("1 + 1", Fault.ARGUMENTS),
        ("", Fault.ARGUMENTS),
        ("'a' 'b'", Fault.ARGUMENTS),
    ],
)
def test_what_is_none(text: str, fault: Fault) -> None:
    with pytest.raises(LiteralError) as raised:
        to_json(text, 2)
    assert raised.value.fault is fault


@pytest.mark.parametrize(
    ("text", "expected"),
    [("+3", "3"), (".5", "0.5"), ("5.", "5.0"), ("007", "7"), ("-00.50e+01", "-0.50e+01"), ("x", None)],
)
def test_numbers_keep_their_digits(text: str, expected: str | None) -> None:
    assert number(text) == expected
