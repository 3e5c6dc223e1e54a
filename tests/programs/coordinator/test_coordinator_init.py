"""How a run begins and ends on a chain: `init_coordinator` and `free_coordinator`."""

from hashlib import sha256

import pytest
from kits.chain.anchor import encode_bytes, get_discriminator
from kits.runs import build_paused_run, build_run
from kits.svm import NOW, Refused, signs
from programs.chain_kit import (
    BAD_SEEDS,
    INVALID_TEXTS,
    NOT_EMPTY,
    NOT_HALTED,
    NOT_OWNER,
    NOT_SIGNER,
    NOT_UNDERSTOOD,
    NOT_WRITABLE,
    UNCOLLECTED,
    WRONG_OWNER,
    WRONG_PROGRAM,
    WRONG_SIZE,
    ChainStage,
    with_account,
)
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche.backends.solana.interface.accounts import InstanceData
from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.backends.solana.interface.calls import reads, writes
from psyche.backends.solana.interface.coordinator import build_free
from psyche.core.encoding.account import encode_state
from psyche.core.encoding.tables import DISCRIMINATOR
from psyche.core.state.limits import STATE_BYTES
from psyche.core.state.state import Coordinator, RunState

NOT_SIGNED, NOT_ZERO = 2_002, 2_013  # Anchor: the constraints of the account of a new run
SLOT = (1_000).to_bytes(8, "little")  # where a test's chain stands


@pytest.fixture
def stage() -> ChainStage:
    return ChainStage()


class TestInit:
    def test_a_new_account_is_what_core_writes_for_a_new_run(self, stage: ChainStage) -> None:
        stage.create("a run", "0.9.1")
        uid = sha256(bytes(stage.account.pubkey()) + b"a run" + NOW.to_bytes(8, "little") + SLOT).digest()
        assert stage.raw == encode_state(Coordinator(run_id="a run", run_uid=uid, client_version="0.9.1"))

    def test_the_instance_names_authorities_and_account(self, stage: ChainStage) -> None:
        stage.create()
        raw = stage.bank.get_data(stage.run.instance)
        assert len(raw) == 181
        bump = Pubkey.find_program_address([b"coordinator", b"run"], COORDINATOR)[1]
        assert InstanceData.read(raw) == (bump, *stage.authorities, stage.run.account, "run", 0)

    def test_texts_fill_their_fields(self, stage: ChainStage) -> None:
        stage.create("r" * 32, "v" * 96)
        assert (stage.state.run_id, stage.state.client_version) == ("r" * 32, "v" * 96)

    def test_a_clock_before_1970_counts_as_0(self, stage: ChainStage) -> None:
        stage.bank.set_time(-5)
        stage.create()
        assert stage.state.run_uid == sha256(bytes(stage.account.pubkey()) + b"run" + bytes(8) + SLOT).digest()

    def test_a_run_id_stands_once(self, stage: ChainStage) -> None:
        stage.create()
        stage.account = Keypair()
        with pytest.raises(Refused, match="already in use"):
            stage.create()

    @pytest.mark.parametrize(
        ("run_id", "version"), [("", ""), ("r" * 33, ""), ("r\0n", ""), ("run", "v" * 97), ("run", "v\0")]
    )
    def test_texts_that_do_not_fit_are_refused(self, stage: ChainStage, run_id: str, version: str) -> None:
        creation, init = stage.build_init()
        instance = Pubkey.find_program_address([b"coordinator", run_id.encode()[:32]], COORDINATOR)[0]
        body = init.data[: 8 + 64] + b"".join(encode_bytes(text.encode()) for text in (run_id, version))
        init = Instruction(COORDINATOR, body, with_account(init, 1, writes(instance)).accounts)
        with pytest.raises(Refused) as refused:
            stage.bank.send(creation, init, signers=[stage.account])
        assert refused.value.code == INVALID_TEXTS

    def test_a_run_id_that_is_no_text_is_refused(self, stage: ChainStage) -> None:
        creation, init = stage.build_init("abc")
        broken = Instruction(init.program_id, init.data.replace(b"abc", b"a\xff\xfe"), init.accounts)
        with pytest.raises(Refused) as refused:
            stage.bank.send(creation, broken, signers=[stage.account])
        assert refused.value.code == NOT_UNDERSTOOD


class TestAccountOfANewRun:
    """`init_coordinator` takes no account but an empty one of its own program, whose key signs."""

    def refuse(self, stage: ChainStage, raw: bytes, owner: Pubkey = COORDINATOR) -> int | None:
        stage.bank.put(stage.account.pubkey(), owner, raw)
        return stage.bank.refuse(stage.build_init()[1], stage.account)

    def test_an_empty_account_of_the_right_size_is_taken(self, stage: ChainStage) -> None:
        stage.put_raw(bytes(STATE_BYTES))
        stage.bank.send(stage.build_init()[1], signers=[stage.account])
        assert stage.raw.startswith(DISCRIMINATOR)

    @pytest.mark.parametrize("size", [8, STATE_BYTES - 1, STATE_BYTES + 1, STATE_BYTES + 8])
    def test_other_sizes_are_refused(self, stage: ChainStage, size: int) -> None:
        assert self.refuse(stage, bytes(size)) == WRONG_SIZE

    @pytest.mark.parametrize("place", [8, 15, 16, 1_000, STATE_BYTES - 2, STATE_BYTES - 1])
    def test_accounts_that_hold_anything_are_refused(self, stage: ChainStage, place: int) -> None:
        raw = bytearray(STATE_BYTES)
        raw[place] = 1
        assert self.refuse(stage, bytes(raw)) == NOT_EMPTY

    def test_the_account_of_another_run_is_refused(self, stage: ChainStage) -> None:
        assert self.refuse(stage, encode_state(build_run().state)) == NOT_ZERO

    def test_the_account_of_another_program_is_refused(self, stage: ChainStage) -> None:
        assert self.refuse(stage, bytes(STATE_BYTES), Pubkey.default()) == WRONG_OWNER

    def test_nobody_takes_an_account_without_its_key(self, stage: ChainStage) -> None:
        stage.put_raw(bytes(STATE_BYTES))
        init = with_account(stage.build_init()[1], 2, writes(stage.account.pubkey()))
        assert stage.bank.refuse(init) == NOT_SIGNED

    def test_other_accounts_of_the_instruction_are_checked(self, stage: ChainStage) -> None:
        stage.put_raw(bytes(STATE_BYTES))
        init = stage.build_init()[1]
        payer = Keypair()
        assert stage.bank.refuse(with_account(init, 0, writes(payer.pubkey())), stage.account) == NOT_SIGNER
        assert stage.bank.refuse(with_account(init, 0, signs(payer)), stage.account, payer) is None
        assert stage.bank.refuse(with_account(init, 1, writes(payer.pubkey())), stage.account) == BAD_SEEDS
        assert stage.bank.refuse(with_account(init, 3, reads(COORDINATOR)), stage.account) == WRONG_PROGRAM
        unwritable = with_account(init, 2, signs(stage.account))
        assert stage.bank.refuse(unwritable, stage.account) == NOT_WRITABLE


class TestFree:
    def free(self, stage: ChainStage, spill: Pubkey) -> None:
        stage.bank.send(build_free(stage.run, stage.authorities.main, spill), signers=[stage.owner])

    def test_both_deposits_go_to_the_spill_account(self, stage: ChainStage) -> None:
        stage.create()
        deposits = [stage.bank.get_lamports(account) for account in stage.run]
        spill = Keypair().pubkey()
        self.free(stage, spill)
        assert stage.bank.get_lamports(spill) == sum(deposits) > 1_150_627_200
        assert [stage.bank.get_data(account) for account in stage.run] == [b"", b""]

    def test_the_run_id_and_the_account_are_free_for_another_run_in_the_same_second(self, stage: ChainStage) -> None:
        stage.create()
        first = stage.state.run_uid
        self.free(stage, Keypair().pubkey())
        stage.bank.set_time(NOW, slot=1_001)
        stage.create()
        assert stage.state.run_uid != first

    def test_a_finished_or_paused_run_is_freed(self) -> None:
        for state in (RunState.FINISHED, RunState.PAUSED):
            run = build_paused_run()
            run.state.run_state = state
            stage = ChainStage(run.state)
            self.free(stage, Keypair().pubkey())
            assert not stage.raw

    def test_a_run_that_is_going_is_not_freed(self) -> None:
        stage = ChainStage(build_run().state)
        free = build_free(stage.run, stage.authorities.main, Keypair().pubkey())
        assert stage.bank.refuse(free, stage.owner) == NOT_HALTED

    def test_earnings_are_collected_first(self) -> None:
        run = build_paused_run()
        run.state.registry.slots[1].earned = 1
        stage = ChainStage(run.state)
        free = build_free(stage.run, stage.authorities.main, Keypair().pubkey())
        assert stage.bank.refuse(free, stage.owner) == UNCOLLECTED

    def test_only_the_owner_frees_a_run(self, stage: ChainStage) -> None:
        stage.create()
        stranger, spill = Keypair(), Keypair().pubkey()
        assert stage.bank.refuse(build_free(stage.run, stranger.pubkey(), spill), stranger) == NOT_OWNER
        free = build_free(stage.run, stage.authorities.main, spill)
        assert stage.bank.refuse(with_account(free, 0, reads(stage.authorities.main))) == NOT_SIGNER

    def test_what_is_closed_or_paid_must_be_writable(self, stage: ChainStage) -> None:
        stage.create()
        free = build_free(stage.run, stage.authorities.main, Keypair().pubkey())
        for place in (1, 2, 3):
            unwritable = with_account(free, place, reads(free.accounts[place].pubkey))
            assert stage.bank.refuse(unwritable, stage.owner) == NOT_WRITABLE

    def test_a_deposit_is_not_spilled_into_a_closed_account(self, stage: ChainStage) -> None:
        stage.create()
        for account in stage.run:
            free = build_free(stage.run, stage.authorities.main, account)
            assert stage.bank.refuse(free, stage.owner) is not None
        assert stage.raw.startswith(get_discriminator("account", "CoordinatorAccount"))
