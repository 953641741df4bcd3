"""The status document follows docs/status.schema.json, whatever state the daemon is in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway_protocol.families import Family
from gateway_protocol.messages import ModelState, NotRoutableReason
from provider.jobs.state import JobState
from provider.policy.rules import Level, PauseReason
from provider.status.document import ProcessFacts, whole
from provider.status.health import LayerState, health, layers
from tests.provider.status.documents import WELL, document

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "status.schema.json").read_text("utf-8"))
METRICS = {"url": None, "error": None}


def check(found: dict[str, Any]) -> None:
    jsonschema_rs.validator_for(SCHEMA, offline=True).validate(json.loads(json.dumps(found)))


def facts(**changes: Any) -> ProcessFacts:
    well = {key: value for key, value in WELL["process"].items() if key != "pid"}
    return ProcessFacts(**(well | changes))


def test_the_document_of_these_tests_follows_the_schema() -> None:
    check({"health": health(WELL), **WELL})
    paused = {"paused": True, "pauses": [{"reason": "on_battery", "words": "w", "until": 1.5}]}
    found = document(policy=paused, measured={"model": "m", "decode_tokens_per_s": 1.5} | _FIGURES)
    check({"health": health(found), **found})


_FIGURES = {"prefill_tokens_per_s": 2, "at_ms": 3}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "starting", "contract": None, "provider_id": None, "key_id": None},
        {"state": "idle", "reason": "gateway.url: must be a ws:// or wss:// URL"},
    ],
)
def test_while_nothing_is_served(changes: dict[str, Any]) -> None:
    found = whole(facts(**changes), None, METRICS, "2026-06-01")
    check(found)
    assert found["engine"] is None
    assert found["today"]["jobs"] == 0
    assert found["health"]["summary"]


def test_a_member_that_is_not_documented_is_noticed() -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        check({"health": health(WELL), **WELL, "more": 1})


def values(*path: str) -> set[object]:
    """The words the schema allows at a member."""
    node: Any = SCHEMA
    for name in path:
        node = node["items"] if name == "[]" else node["properties"][name]
    return set(node["enum"]) - {None}


def test_the_words_of_the_schema_are_those_of_the_code() -> None:
    assert values("policy", "pauses", "[]", "reason") == {reason.value for reason in PauseReason}
    assert values("link", "reasons", "[]") == {reason.value for reason in NotRoutableReason}
    assert values("health", "layers", "[]", "state") == {state.value for state in LayerState}
    assert values("health", "layers", "[]", "id") == {layer.id for layer in layers(WELL)}
    assert values("models", "[]", "state") == {state.value for state in ModelState}
    assert values("models", "[]", "family") == {family.value for family in Family}
    assert values("machine", "thermal") == {level.value for level in Level}
    states = {state.value for state in JobState} - {JobState.ENDED.value}
    assert set(SCHEMA["properties"]["jobs"]["properties"]) == states | {"outbox_bytes"}


def test_every_object_says_what_it_requires_and_allows_nothing_else() -> None:
    text = json.dumps(SCHEMA)
    objects = len(re.findall(r'"type": (\["object", "null"\]|"object")', text))
    assert text.count('"additionalProperties": false') == objects
    assert text.count('"required": [') == objects
