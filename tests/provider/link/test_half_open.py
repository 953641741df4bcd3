"""How soon a half-open link is noticed, by design: from the constants alone."""

from __future__ import annotations

import pytest

from gateway_protocol import limits
from provider.link.dial import LinkTimers
from provider.local_gateway.settings import Timers

# What a loaded machine may need between a timer's time and its turn.
SPARE_S = 3.0

DAEMON = (LinkTimers().dead, LinkTimers().look, LinkTimers().heartbeat)
GATEWAY = (Timers().link_dead, Timers().look, Timers().heartbeat)


@pytest.mark.parametrize(("dead", "look", "heartbeat"), [DAEMON, GATEWAY], ids=["daemon", "gateway"])
def test_a_half_open_link_is_noticed_in_time(dead: float, look: float, heartbeat: float) -> None:
    # The last frame came before the link broke, so silence begins no later than that.
    assert dead + look + SPARE_S <= limits.HALF_OPEN_NOTICED_MS / 1000
    # And a link that lost a heartbeat or two isn't dead yet.
    assert dead > 2 * heartbeat
