"""The job's table: every path ends once, and nothing else is allowed."""

import pytest

from provider.jobs.state import IllegalTransition, JobEvent, JobState, transition


def test_the_whole_life() -> None:
    state = JobState.OFFERED
    for event in (JobEvent.SUBMIT, JobEvent.ADMIT, JobEvent.FINISH, JobEvent.ACKNOWLEDGE):
        state = transition(state, event)
    assert state is JobState.ENDED


def test_a_second_terminal_frame_is_illegal() -> None:
    for state in (JobState.SETTLING, JobState.ENDED):
        for event in (JobEvent.FINISH, JobEvent.REJECT, JobEvent.ADMIT):
            with pytest.raises(IllegalTransition):
                transition(state, event)


def test_a_running_job_is_never_rejected() -> None:
    with pytest.raises(IllegalTransition, match="running can't reject"):
        transition(JobState.RUNNING, JobEvent.REJECT)


def test_every_state_reaches_an_end() -> None:
    for state in set(JobState) - {JobState.ENDED}:
        assert transition(state, JobEvent.ABANDON) is JobState.ENDED
