"""Who runs after an engine has died, with whom, and who is found guilty."""

from __future__ import annotations

from tessera.engine.trials import MARGIN, Trials


class Asked:
    """A request with one completion."""

    def __init__(self):
        self.num_made = 0
        self.finished = False
        self.completions = [None]


def twice_lost(*states):
    """Trials after two deaths with these requests in progress, and what runs on the third engine."""
    trials = Trials()
    for _ in range(2):
        assert trials.lost(states) is None
        running = trials.replay(states)
    return trials, running


def test_after_one_death_all_run_together_again():
    trials, states = Trials(), [Asked(), Asked()]
    assert trials.lost(states) is None
    assert trials.replay(states) == states
    assert trials.admits(Asked())


def test_after_two_deaths_suspects_run_alone_until_they_have_got_further():
    first, second, bystander, new = (Asked() for _ in range(4))
    first.num_made = 5
    trials = Trials()
    for running in ([first, second], [first, second, bystander]):
        trials.lost(running)
        sent = trials.replay(running)
    assert sent == [first]
    assert not trials.admits(new)
    first.num_made = 5 + MARGIN
    assert trials.go_on() == []
    first.num_made += 1
    assert trials.go_on() == [second]
    second.finished = True
    assert trials.go_on() == [bystander, new]
    assert trials.go_on() == []
    assert trials.admits(Asked())


def test_the_one_that_ran_alone_is_guilty_and_the_others_stay_suspects():
    first, second, waiting = Asked(), Asked(), Asked()
    trials, sent = twice_lost(first, second)
    assert sent == [first]
    trials.admits(waiting)
    assert trials.lost([first, second, waiting]) is first
    first.finished = True
    assert trials.replay([second, waiting]) == [second]
    assert trials.lost([second, waiting]) is second
    assert trials.replay([waiting]) == [waiting]


def test_one_that_was_cleared_begins_anew():
    cleared = Asked()
    trials, _ = twice_lost(cleared)
    cleared.num_made = MARGIN + 1
    trials.go_on()
    assert trials.lost([cleared]) is None
    assert trials.replay([cleared]) == [cleared]
    assert trials.admits(Asked())


def test_suspects_that_have_left_are_not_tried():
    first, second, third = Asked(), Asked(), Asked()
    trials, _ = twice_lost(first, second, third)
    first.finished = second.finished = True
    assert trials.go_on() == [third]
    third.finished = True
    assert trials.lost([]) is None
    assert trials.replay([]) == []
