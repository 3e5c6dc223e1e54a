"""Which reading counts, in any order of readings from endpoints that are late, stale, contradicting or broken."""

from dataclasses import replace
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kits.tier import draw
from sim.chain_kit import build_chain, get_state

from psyche.backends.solana.member.link import Reading
from psyche.backends.solana.member.view import SILENT_SLOTS, Choice, RecordView, get_kept_phase
from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state.state import Coordinator, RunState

NONCES = 8
START_SLOT = 20
ENDPOINTS = ("one", "two", "three")


@cache
def build_record(nonce: int, *, forked: bool = False, run: int = 1) -> bytes:
    """A record, which each chain has once for a nonce."""
    state = decode_state(_get_first())
    state.nonce, state.run_uid = nonce, bytes([run]) * 32
    state.state_start_unix += nonce * 2 + forked
    return encode_state(state)


@cache
def _get_first() -> bytes:
    return encode_state(get_state(build_chain()))


def read(nonce: int, slot: int = START_SLOT, endpoint: str = "one", *, forked: bool = False, run: int = 1) -> Reading:
    return Reading(endpoint, slot, build_record(nonce, forked=forked, run=run))


class ReadingsInAnyOrder(RuleBasedStateMachine):
    """Readings arrive in any order; what may be acted on only goes forward."""

    def __init__(self) -> None:
        super().__init__()
        self.view = RecordView(START_SLOT)
        self.shown: list[int] = []
        self.latest: dict[str, bytes] = {}  # what each endpoint showed last since the newest record
        self.seen_slot = 0  # the newest at which that one was shown

    @rule(
        nonce=st.integers(0, NONCES), slot=st.integers(0, 2 * START_SLOT), endpoint=st.sampled_from(ENDPOINTS),
        forked=st.booleans(),
    )  # fmt: skip
    def show(self, nonce: int, slot: int, endpoint: str, *, forked: bool) -> None:
        """An endpoint shows a record."""
        before = self.view.nonce
        reading = read(nonce, slot, endpoint, forked=forked)
        taken = self.view.take(reading)
        if slot < START_SLOT:
            assert taken is Choice.OLD, "M9: nothing older than the start"
            return
        assert (taken is Choice.NEW) == (nonce > before)
        if nonce > before:
            self.shown.append(nonce)
            self.latest, self.seen_slot = {}, 0
        if nonce == self.view.nonce or slot > self.seen_slot:
            self.latest[endpoint] = reading.raw
        if reading.raw == self.view.raw:
            self.seen_slot = max(self.seen_slot, slot)

    @rule(endpoint=st.sampled_from(ENDPOINTS), at=st.integers(0, 400), value=st.integers(0, 255))
    def show_damaged(self, endpoint: str, at: int, value: int) -> None:
        """An endpoint shows bytes that are no record."""
        raw = bytearray(build_record(NONCES + 1))
        raw[0] ^= 1 + value % 255
        assert self.view.take(Reading(endpoint, START_SLOT, bytes(raw[: at + 1]))) is Choice.UNREADABLE
        assert self.view.problem

    @invariant()
    def goes_forward(self) -> None:
        """Nonces only rise, and what is kept was shown by somebody."""
        assert self.shown == sorted(set(self.shown))
        if self.view.nonce >= 0:
            assert self.view.state.nonce == self.view.nonce

    @invariant()
    def acts_only_on_what_nobody_contradicts(self) -> None:
        """It is usable exactly while no endpoint shows other bytes under this nonce, or an older record later."""
        agreed = all(raw == self.view.raw for raw in self.latest.values())
        assert self.view.is_usable == (self.view.nonce >= 0 and agreed)


TestReadingsInAnyOrder = ReadingsInAnyOrder.TestCase
TestReadingsInAnyOrder.settings = settings(max_examples=draw(60), stateful_step_count=30, deadline=None)


def test_if_the_contradiction_lasts_the_record_of_most_endpoints_is_taken() -> None:
    view = RecordView(0)
    view.take(read(3))
    view.take(read(3, endpoint="two", forked=True))
    view.take(read(3, endpoint="three", forked=True))
    assert "the record of three, two is taken; remove the endpoint that is wrong: one" in view.choose_fork()
    assert view.is_usable
    assert view.raw == read(3, forked=True).raw
    assert view.take(read(3, endpoint="one")) is Choice.FORKED
    assert view.is_usable, "said and done"


def test_of_two_endpoints_that_contradict_each_other_for_long_the_first_one_counts() -> None:
    view = RecordView(0)
    view.take(read(3))
    view.take(read(3, endpoint="two", forked=True))
    view.choose_fork()
    assert view.raw == read(3).raw
    view.take(read(4))
    view.take(read(4, endpoint="two", forked=True))
    assert view.is_usable, "it goes on to contradict"
    view.take(read(4, endpoint="two"))
    view.take(read(5))
    view.take(read(5, endpoint="two", forked=True))
    assert not view.is_usable, "it had agreed meanwhile"


def build_settled() -> RecordView:
    """Of three endpoints the third contradicted the others for long; all have shown slot 30."""
    view = RecordView(0)
    for endpoint in ("one", "two", "three"):
        view.take(read(3, 30, endpoint, forked=endpoint == "three"))
    view.choose_fork()
    return view


def test_an_endpoint_that_was_wrong_is_not_the_first_to_be_believed() -> None:
    view = build_settled()
    assert view.take(read(4, 31, "three", forked=True)) is Choice.UNSUPPORTED
    assert view.nonce == 3
    assert view.take(read(4, 31, "one")) is Choice.NEW
    assert view.take(read(4, 31, "three", forked=True)) is Choice.FORKED
    assert view.is_usable
    assert view.take(read(4, 32, "three")) is Choice.KNOWN
    assert view.take(read(5, 33, "three")) is Choice.NEW, "it had agreed"


def test_an_endpoint_that_was_wrong_is_believed_when_the_others_are_silent_for_long() -> None:
    view = build_settled()
    assert view.take(read(4, 30 + SILENT_SLOTS, "three")) is Choice.UNSUPPORTED
    assert view.take(read(4, 31 + SILENT_SLOTS, "three")) is Choice.NEW
    assert view.is_usable


def test_another_run_under_the_same_address_is_told_with_what_to_do() -> None:
    view = RecordView(0)
    view.take(read(3))
    assert view.take(read(9, endpoint="two", run=2)) is Choice.OTHER_RUN
    assert "two shows another run" in view.problem
    assert "--rpc" in view.problem
    assert view.nonce == 3


def test_the_slot_that_is_kept_is_the_first_one_that_showed_the_record() -> None:
    view = RecordView(0)
    view.take(read(3, slot=30))
    view.take(read(3, slot=44, endpoint="two"))
    assert view.slot == 30


def test_a_restart_tells_a_warmup_from_the_rounds_that_follow_it() -> None:
    state: Coordinator = decode_state(build_record(1))
    warmup, train, report = (
        get_kept_phase(replace(state, run_state=run_state))
        for run_state in (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
    )
    assert warmup != train == report


def test_one_endpoint_that_steadily_shows_an_older_record_is_a_chain_that_went_back() -> None:
    view = RecordView(0)
    view.take(read(5, 30))
    assert view.take(read(4, 30)) is Choice.OLD, "it was asked before"
    assert view.take(read(4, 31)) is Choice.FORKED
    assert view.problem == "it shows a record with nonce 4, and has shown one with nonce 5"
    assert not view.is_usable
    told = view.choose_fork()
    assert told.startswith("the chain at one went back: it shows the run with nonce 4 again, after 5")
    assert "remove" not in told
    assert (view.nonce, view.slot, view.is_usable, view.version) == (4, 31, True, 2)
    assert view.take(read(5, 32, forked=True)) is Choice.NEW


def test_of_several_endpoints_the_one_that_went_back_alone_is_named() -> None:
    view = RecordView(0)
    for endpoint in ("one", "two"):
        view.take(read(5, 30, endpoint))
    assert view.take(read(4, 31, "two")) is Choice.FORKED
    assert "different records: one shows one with nonce 5, this one a record with nonce 4" in view.problem
    assert "the record of one is taken; remove the endpoint that is wrong: two" in view.choose_fork()
    assert view.nonce == 5


def test_a_run_whose_account_is_gone_for_long_was_closed_unless_it_was_finished() -> None:
    view = RecordView(0)
    view.take(read(5, 30))
    assert view.take(Reading("one", 31, b"")) is Choice.FORKED
    assert not view.is_usable
    view.choose_fork()
    assert not view.raw
    state = decode_state(build_record(6))
    state.run_state = RunState.FINISHED
    view = RecordView(0)
    view.take(Reading("one", 30, encode_state(state)))
    assert view.take(Reading("one", 31, b"")) is Choice.KNOWN
    assert view.is_usable
