"""Who runs after an engine has died, with whom, and who is found guilty."""

from __future__ import annotations

from tessera.engine.crash_suspects import MARGIN_TOKENS, CrashSuspects


class Asked:
    """A request with one completion."""

    def __init__(self):
        self.num_generated_tokens = 0
        self.finished = False
        self.completions = [None]


def crashed_twice(*states):
    """CrashSuspects after two deaths with these requests in progress, and what runs on the third engine."""
    crash_suspects = CrashSuspects()
    for _ in range(2):
        assert crash_suspects.record_crash(states) is None
        running = crash_suspects.replay(states)
    return crash_suspects, running


def test_after_one_death_all_run_together_again():
    crash_suspects, states = CrashSuspects(), [Asked(), Asked()]
    assert crash_suspects.record_crash(states) is None
    assert crash_suspects.replay(states) == states
    assert crash_suspects.admits(Asked())


def test_after_two_deaths_suspects_run_alone_until_they_have_got_further():
    first, second, bystander, new = (Asked() for _ in range(4))
    first.num_generated_tokens = 5
    crash_suspects = CrashSuspects()
    for running in ([first, second], [first, second, bystander]):
        crash_suspects.record_crash(running)
        sent = crash_suspects.replay(running)
    assert sent == [first]
    assert not crash_suspects.admits(new)
    first.num_generated_tokens = 5 + MARGIN_TOKENS
    assert crash_suspects.release() == []
    first.num_generated_tokens += 1
    assert crash_suspects.release() == [second]
    second.finished = True
    assert crash_suspects.release() == [bystander, new]
    assert crash_suspects.release() == []
    assert crash_suspects.admits(Asked())


def test_the_one_that_ran_alone_is_guilty_and_the_others_stay_suspects():
    first, second, waiting = Asked(), Asked(), Asked()
    crash_suspects, sent = crashed_twice(first, second)
    assert sent == [first]
    crash_suspects.admits(waiting)
    assert crash_suspects.record_crash([first, second, waiting]) is first
    first.finished = True
    assert crash_suspects.replay([second, waiting]) == [second]
    assert crash_suspects.record_crash([second, waiting]) is second
    assert crash_suspects.replay([waiting]) == [waiting]


def test_one_that_was_cleared_begins_anew():
    cleared = Asked()
    crash_suspects, _ = crashed_twice(cleared)
    cleared.num_generated_tokens = MARGIN_TOKENS + 1
    crash_suspects.release()
    assert crash_suspects.record_crash([cleared]) is None
    assert crash_suspects.replay([cleared]) == [cleared]
    assert crash_suspects.admits(Asked())


def test_suspects_that_have_left_are_not_tried():
    first, second, third = Asked(), Asked(), Asked()
    crash_suspects, _ = crashed_twice(first, second, third)
    first.finished = second.finished = True
    assert crash_suspects.release() == [third]
    third.finished = True
    assert crash_suspects.record_crash([]) is None
    assert crash_suspects.replay([]) == []
