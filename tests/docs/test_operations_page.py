"""docs/operations.md names what the code knows."""

from __future__ import annotations

from pathlib import Path

from provider.config import PolicySection
from provider.policy.rules import RESUME_AFTER_SECONDS, PauseReason

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")


def test_every_reason_to_pause_and_every_key_is_told() -> None:
    for reason in PauseReason:
        assert f"`{reason.value}`" in PAGE
    for key in PolicySection.model_fields:
        assert f"`{key}`" in PAGE or f"policy.{key}" in PAGE
    assert f"good for {RESUME_AFTER_SECONDS:.0f}\nseconds" in PAGE
