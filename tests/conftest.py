"""What holds for every test: none may be skipped where `--no-skips` is given (continuous integration)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# The same examples in every run, none failed for the time it took: a check must say the same twice. To look
# for new ones: HYPOTHESIS_PROFILE=explore scripts/check tests/… (what is found becomes a test of its own).
settings.register_profile(
    "check", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "explore", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "check")
settings.load_profile(PROFILE)
if PROFILE == "check":
    # Constants of whatever modules are loaded by then would go into the examples, and which these are depends
    # on the tests that came before in the same process.
    providers._get_local_constants = providers.Constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skipped test counts as failed")


def pytest_configure(config: pytest.Config) -> None:
    # Else pytest-asyncio's look for a current loop makes one that nobody closes, which is a warning.
    asyncio.set_event_loop(None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which --no-skips forbids: {report.longrepr}"
    return report
