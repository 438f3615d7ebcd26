"""Restarts: whether and when, by the deaths within a window."""

from __future__ import annotations

from procession.supervisor.restart_policy import RestartPolicy, Restarts

POLICY = RestartPolicy(delay_first_s=0.1, delay_max_s=0.5, window_s=60, deaths_max=5, kills_max=7)


def test_the_delay_doubles_up_to_its_limit() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.died(now, was_killed=True) for now in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_the_fifth_death_within_the_window_ends_the_restarts() -> None:
    restarts = Restarts(POLICY)
    assert None not in [restarts.died(now, was_killed=False) for now in (0, 10, 20, 30)]
    assert restarts.died(59.9, was_killed=False) is None


def test_a_death_before_the_window_does_not_count() -> None:
    restarts = Restarts(POLICY)
    for now in range(0, 6000, 16):
        assert restarts.died(now, was_killed=False) is not None
    assert restarts.died(100_000, was_killed=False) == 0.1


def test_kills_from_outside_have_a_higher_limit() -> None:
    restarts = Restarts(POLICY)
    assert None not in [restarts.died(now, was_killed=True) for now in range(6)]
    assert restarts.died(7, was_killed=True) is None


def test_kills_do_not_count_towards_the_limit_for_deaths() -> None:
    restarts = Restarts(POLICY)
    deaths = [restarts.died(now, was_killed=now % 2 == 0) for now in range(9)]
    assert None not in deaths
    assert restarts.died(9, was_killed=False) is None
