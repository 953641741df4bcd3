"""`self-test` on Linux: what exists there passes, the rest is skipped with its reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cli.main import run

Out = pytest.CaptureFixture[str]
FIXTURE_MODEL = next((Path(__file__).parents[1] / "fixtures" / "models").iterdir())


def outcomes(capsys: Out, *arguments: str, code: int = 0) -> dict[str, tuple[str, str]]:
    assert run(["self-test", "--json", *arguments]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == ("failed" if code else "passed")
    return {test["id"]: (test["verdict"], test["detail"]) for test in document["tests"]}


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has what is skipped here")
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_linux(capsys: Out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests' own model: it needs no network, and holding it to a call takes no talent.
    model = f"qwen3-fixture={FIXTURE_MODEL}"
    found = outcomes(capsys, "--model", model)
    assert set(found) == {"mask", "metal", "facts", "awake", "service", "forced_call"}
    assert found["mask"][0] == "passed"
    assert found["metal"][0] == "skipped"
    assert found["facts"][0] == "passed"
    assert found["forced_call"][0] == "passed", found["forced_call"]
    assert "get_weather(" in found["forced_call"][1]
    assert found["awake"][0] in ("passed", "skipped")
    assert found["service"][0] in ("passed", "skipped")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_fails_is_named_and_ends_with_1(capsys: Out, tmp_path: Path) -> None:
    found = outcomes(capsys, "--model", str(tmp_path / "nothing"), code=1)
    assert found["forced_call"] == ("failed", "the daemon ended with 1")
