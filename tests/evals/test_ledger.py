"""What a member does next: its own part, a few repeats, and what others leave undone."""

from dataclasses import replace

from psyche.core.encoding.header import NumericClass
from psyche.evals.division import find_home, is_repeated
from psyche.evals.ledger import Ledger, Plan, Worker
from psyche.evals.results import BlockResult
from psyche.evals.tasks import Metric

DIGEST, TASK = b"d" * 32, b"t" * 32
PLAN = Plan(name="task", task_hash=TASK, documents=630, metric=Metric.ACC)
SECRET = next(  # repeats nothing
    secret
    for number in range(1_000)
    if not any(is_repeated(secret := bytes([number % 256, number // 256]), DIGEST, TASK, block) for block in range(20))
)
MEMBERS, PATIENCE_S = 4, 3.0
KEYS = [bytes([member]) * 32 for member in range(32)]


def make_worker(member: int) -> Worker:
    return Worker(7, member, KEYS[:MEMBERS], SECRET)


def make_result(member: int, block: int, right: int = 0b1011, **changes: object) -> BlockResult:
    made = BlockResult(
        run_uid=b"r" * 32, digest=DIGEST, task_hash=TASK, epoch=7, member=member, block=block,
        count=22 if block == 19 else 32, numeric_class=NumericClass.FP32, right=right, right_norm=right, score_sum=0.0,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def make_ledger(*results: BlockResult, now: float = 0.0) -> Ledger:
    ledger = Ledger(DIGEST, [PLAN], 0.0)
    for one in results:
        assert not ledger.find_problem(one, make_worker(one.member).key)
        ledger.add(one, KEYS[:MEMBERS], now)
    return ledger


def choose(ledger: Ledger, member: int, now: float = 0.0) -> int | None:
    found = ledger.choose(make_worker(member), now, PATIENCE_S)
    return None if found is None else found[1]


def test_every_block_has_a_home_where_its_members_walk_begins() -> None:
    assert [find_home(block, MEMBERS, 20) for block in range(20)] == [*[0] * 5, *[1] * 5, *[2] * 5, *[3] * 5]
    assert [find_home(block, 7, 3) for block in range(3)] == [2, 4, 6], "the last of those that begin there"


def test_members_leave_each_other_their_parts_as_long_as_something_comes() -> None:
    ledger = make_ledger(*[make_result(0, block) for block in range(5)])
    assert choose(ledger, 0) is None
    assert choose(ledger, 1) == 5
    assert choose(ledger, 0, PATIENCE_S + 0.1) == 9, "nothing has come from its nearest neighbour, who begins at 5"
    ledger.add(make_result(1, 12), KEYS[:MEMBERS], PATIENCE_S)
    assert choose(ledger, 0, PATIENCE_S + 0.1) is None, "who does something else is not silent"


def test_a_silent_part_is_taken_over_by_the_nearest_member_alone() -> None:
    """Member 3 is dead; 2 is before it, and 1 and 0 have done theirs too."""
    ledger = make_ledger(*[make_result(block // 5, block) for block in range(15)])
    assert [choose(ledger, member, 3.1) for member in range(3)] == [None, None, 19]
    ledger.add(make_result(2, 19), KEYS[:MEMBERS], 3.5)
    assert [choose(ledger, member, 6.0) for member in range(3)] == [None, None, None], "the part is not silent"
    assert [choose(ledger, member, 9.6) for member in range(3)] == [None, 18, 18], "2 may be dead as well"


def test_a_disputed_block_is_done_by_others_until_two_agree() -> None:
    done = [make_result(block // 5, block) for block in range(19)]
    ledger = make_ledger(*done, make_result(3, 19), make_result(0, 7, 0b1111_0000))
    assert [choose(ledger, member) for member in (0, 1)] == [None, None], "they have said what they think"
    assert [choose(ledger, member) for member in (2, 3)] == [7, 7]
    merged = ledger.add(make_result(2, 7), KEYS[:MEMBERS], 0.0)
    assert merged.disputes == {7: (make_result(0, 7, 0b1111_0000),)}
    assert merged.counted == frozenset(range(5, 20)), "what 0 did alone counts no more"
    assert choose(ledger, 1) == 0


def test_some_blocks_of_others_are_repeated() -> None:
    ledger = make_ledger(*[make_result(block // 5, block) for block in range(19)], make_result(3, 19))
    assert choose(ledger, 0) is None
    secret = next(
        one for number in range(256) if is_repeated(one := bytes([number]), DIGEST, TASK, 12)
    )  # fmt: skip
    found = ledger.choose(replace(make_worker(0), secret=secret), 0.0, PATIENCE_S)
    assert found is not None
    assert is_repeated(secret, DIGEST, TASK, found[1])


def test_what_has_no_place_says_why() -> None:
    ledger = make_ledger(make_result(0, 3))
    problems = [
        (make_result(0, 3, 0b1), "a second one of block 3"),
        (make_result(1, 20), "of block 20 of 20"),
        (make_result(1, 19, count=23), "of 23 documents, more than block 19 has"),
        (make_result(1, 2, task_hash=b"x" * 32), "of a task that is not asked here"),
    ]
    for result, problem in problems:
        assert ledger.find_problem(result, make_worker(result.member).key) == problem
    for number in range(16):
        ledger.add(make_result(16 + number, 5), KEYS, 0.0)
    assert ledger.find_problem(make_result(1, 5), KEYS[1]) == "one more of block 5"


def test_who_comes_in_the_next_epoch_is_not_taken_for_who_had_the_number_before() -> None:
    """Member 1 of epoch 8 has not sent anything; the one before has, and is member 3 now."""
    ledger = make_ledger(*[make_result(0, block) for block in range(5)], make_result(1, 5))
    worker = replace(make_worker(0), epoch=8, keys=[KEYS[0], KEYS[9], KEYS[2], KEYS[1]])
    assert ledger.choose(worker, PATIENCE_S - 0.1, PATIENCE_S) is None
    assert ledger.find_problem(make_result(3, 5, epoch=8), KEYS[1]) == "a second one of block 5"
    ledger.add(make_result(3, 19, epoch=8), worker.keys, PATIENCE_S)
    assert ledger.choose(worker, PATIENCE_S, PATIENCE_S) == (PLAN, 9), "3 is there, and 1 is not"
