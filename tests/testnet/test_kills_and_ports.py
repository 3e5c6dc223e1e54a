"""Kills are random within their limits; ports are free and not given twice."""

import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from psyche.errors import ConfigError, PsycheError
from psyche.testnet import free_port
from psyche.testnet.free_port import choose_port
from psyche.testnet.supervisor import choose_victims, is_time_to_kill, make_kill_plan


def test_victims_are_drawn_among_the_allowed() -> None:
    assert make_kill_plan(0, 120, (), 3) is None
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


def test_a_port_is_not_given_to_two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    port = choose_port()
    program = (
        "import sys; from psyche.testnet import free_port; from psyche.errors import PsycheError\n"
        "free_port._draw_port = lambda: int(sys.argv[1])\n"
        "try:\n    print(free_port.choose_port())\nexcept PsycheError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(port)], capture_output=True, text=True, check=True)
    assert "no free port" in done.stdout
    monkeypatch.setattr(free_port, "_draw_port", lambda: port)
    with pytest.raises(PsycheError, match="no free port"):
        choose_port()


def test_only_so_many_ports_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_port, "_given", {})
    monkeypatch.setattr(free_port, "MAX_GIVEN", 3)
    first, *others = (choose_port() for _ in range(4))
    assert list(free_port._given) == others
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(("127.0.0.1", first))
    for holder in free_port._given.values():
        holder.close()


def test_a_port_that_is_given_is_none_that_the_system_gives() -> None:
    first, last = map(int, free_port.EPHEMERAL_PORTS.read_text().split())
    ports = {choose_port() for _ in range(20)}
    assert not any(first <= port <= last for port in ports)
    assert len(ports) == 20, "nor is it given twice"


def test_where_the_system_gives_nearly_all_ports_it_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    for place in (tmp_path / "range", tmp_path / "missing"):
        monkeypatch.setattr(free_port, "EPHEMERAL_PORTS", place)
        assert free_port._draw_port() == 0
        with socket.create_server(("127.0.0.1", choose_port())):
            pass


def test_a_wanted_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PsycheError, match=f"port {port}"):
            choose_port(wanted=port)
