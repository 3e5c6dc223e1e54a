"""A small simulated chain with a run that waits for members."""

import random
from collections.abc import Sequence

from psyche.core.state.genesis import create_run
from psyche.core.state.messages import Join, Message
from psyche.core.state.state import Metadata
from psyche.sim.chain.blocks import Blockchain, Transaction, TransactionStatus, sign_transaction
from psyche.sim.scenarios.scenario import Scenario, build_run_config, build_small_model

START: int = 1_700_000_000
OWNER = b"\xff" * 32


def build_chain(skipped: float = 0.0, seed: int = 1, **config: int) -> Blockchain:
    """A chain whose run any two members begin at once."""
    values = {"init_min_clients": 2, "waiting_for_members_extra_time": 1, "entropy_delay": 4} | config
    settings = build_run_config(Scenario(config=values))
    state = create_run(settings, build_small_model(), "run", b"\1" * 32, Metadata(), "", START)
    return Blockchain(state, OWNER, random.Random(seed), START, skipped)


def sign(chain: Blockchain, wallet: bytes, *messages: Message, more: Sequence[bytes] = ()) -> Transaction:
    """A transaction on the newest block."""
    return sign_transaction(messages, [wallet, *more], chain.newest.hash, None)


def pass_slots(chain: Blockchain, count: int = 1) -> None:
    """Let slots of a second pass."""
    for _ in range(count):
        chain.produce(chain.slot + 1.0, START + chain.slot + 1)


def land(chain: Blockchain, transaction: Transaction) -> TransactionStatus:
    """Submit it and let it land."""
    chain.submit(transaction)
    pass_slots(chain)
    status = chain.get_status(transaction.signature)
    assert status is not None
    return status


def get_key(number: int) -> tuple[bytes, bytes]:
    """A member's wallet and session key."""
    return bytes([number]) * 32, bytes([100 + number]) * 32


def join(chain: Blockchain, number: int) -> Transaction:
    """A member's join."""
    wallet, session = get_key(number)
    return sign(chain, wallet, Join(session), more=[session])
