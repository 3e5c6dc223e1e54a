"""Kills are random within their limits; ports are free and not given twice."""

import socket
from random import Random

import pytest

from psyche.errors import ConfigError, PsycheError
from psyche.testnet.free_port import choose_port
from psyche.testnet.kills import choose_victims, is_time_to_kill, make_kill_plan


def test_without_a_number_nobody_is_killed() -> None:
    assert make_kill_plan(0, 120, (), 3) is None


def test_victims_are_drawn_among_the_allowed() -> None:
    plan = make_kill_plan(2, 20, (1, 3, 3), 3)
    assert plan is not None
    assert choose_victims(plan, Random(1)) == [1, 3]
    everyone = make_kill_plan(1, 20, (), 3)
    assert everyone is not None
    assert {victim for seed in range(50) for victim in choose_victims(everyone, Random(seed))} == {1, 2, 3}


@pytest.mark.parametrize(
    ("number", "interval_s", "allowed", "flag"),
    [
        (4, 20, (), "--random-kill-num 4"),
        (-1, 20, (), "--random-kill-num -1"),
        (2, 20, (1,), "--random-kill-num 2"),
        (1, 0, (), "--random-kill-interval 0"),
        (1, 20, (4,), "--allowed-to-kill 4"),
        (1, 20, (0, 1), "--allowed-to-kill 0"),
    ],
)
def test_impossible_kills_name_their_flag(number: int, interval_s: float, allowed: tuple[int, ...], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        make_kill_plan(number, interval_s, allowed, 3)


def test_the_last_kill_leaves_two_whole_epochs() -> None:
    assert is_time_to_kill(216, 240, 8)
    assert not is_time_to_kill(217, 240, 8)
    assert is_time_to_kill(60, 100, 0)
    assert not is_time_to_kill(61, 100, 0)


def test_ports_are_not_given_twice() -> None:
    ports = {choose_port() for _ in range(20)}
    assert len(ports) == 20


def test_a_wanted_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PsycheError, match=f"port {port}"):
            choose_port(wanted=port)
