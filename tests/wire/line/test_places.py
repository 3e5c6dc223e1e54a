"""Places for connections: who is closed when there are too many."""

import trio

from psyche.wire.line.places import Place, Places, get_peer_host

MEMBER = bytes([1]) * 32


class Hall:
    """Places, and who was closed."""

    def __init__(self, **limits: int) -> None:
        self.closed: list[str] = []
        values = {"general": 4, "per_host": 3, "per_key": 2} | limits
        self.places = Places(**values, get_first=lambda: {MEMBER})

    def enter(self, name: str, host: str = "", key: bytes | None = None) -> Place:
        place = self.places.enter(host, lambda _reason: self.closed.append(name))
        if key is not None:
            self.places.identify(place, key)
        return place


def test_the_oldest_stranger_of_the_greediest_address_makes_room() -> None:
    hall = Hall()
    for name, host in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b"), ("c1", "c")):
        hall.enter(name, host)
    assert hall.closed == ["b1"]
    hall.enter("b4", "b")
    assert hall.closed == ["b1", "b2"], "who floods pushes out itself"


def test_an_address_alone_cannot_take_all_places() -> None:
    hall = Hall()
    for number in range(4):
        hall.enter(f"a{number}", "a")
    assert hall.closed == ["a0"]


def test_members_hold_no_general_places_and_are_never_closed_for_strangers() -> None:
    hall = Hall(per_key=10)
    for number in range(9):
        hall.enter(f"member {number}", "a", MEMBER)
    for number in range(6):
        hall.enter(f"stranger {number}", f"host {number}")
    assert hall.closed == ["stranger 0", "stranger 1"]
    assert len(hall.places) == 9 + 4


def test_of_one_keys_connections_the_newest_stay() -> None:
    hall = Hall()
    for name in ("first", "second", "third"):
        hall.enter(name, "a", MEMBER)
    assert hall.closed == ["first"]


def test_who_has_left_takes_no_place() -> None:
    hall = Hall()
    for number in range(20):
        hall.places.leave(hall.enter(f"{number}", "a"))
    assert hall.closed == []


async def test_the_host_of_a_connection_is_its_address() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    stream = await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1])
    assert get_peer_host(stream) == "127.0.0.1"
    await stream.aclose()
    assert get_peer_host(stream) == ""
    await listeners[0].aclose()


def test_where_descriptors_are_few_strangers_make_room_for_members_and_the_last_to_come_for_all() -> None:
    hall = Hall(per_key=9)
    hall.places.most = 3
    hall.enter("stranger", "a")
    for number in range(3):
        hall.enter(f"member {number}", "b", MEMBER)
    assert hall.closed == ["stranger"]
    hall.enter("newcomer", "c")
    assert hall.closed == ["stranger", "newcomer"]
    assert len(hall.places) == 3
