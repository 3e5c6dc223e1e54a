"""Whatever data an instruction brings: what the account holds afterwards, core reads; a refusal changes no byte."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.chain.anchor import get_discriminator
from kits.runs import build_cooldown, build_paused_run, build_run, build_training, build_warmup
from kits.tier import draw
from programs.chain_kit import ChainStage
from programs.refusals import Anchor, CoordinatorError
from solders.instruction import Instruction

from psyche.core.encoding.account import decode_state, encode_state
from psyche.core.state import messages as msg
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Coordinator, Metadata, Progress, RunState
from psyche.testing.builders import build_config, build_hash, build_model, build_state

HASH: Final = build_hash("anything")
USERS: Final = (
    "tick", "witness", "warmup_witness", "health_check", "checkpoint", "withdraw", "leave_run", "reclaim_slot",
    "audit", "judge",
)  # fmt: skip
OWNERS: Final = ("update", "update_client_version", "set_future_epoch_rates", "set_paused")
HUB: Final = Checkpoint(CheckpointKind.HUB, "org/model", "main")
UPDATES: Final = (
    msg.Update(build_config(), build_model(), Progress(0, 1, 0), first_weights=HASH),
    msg.Update(model=build_model(checkpoint=HUB)),
    msg.Update(metadata=Metadata("name", "what it is", 1, 2), bootstrap=("/ip4/10.0.0.1/udp/1/quic-v1",)),
)


def build_new() -> Coordinator:
    state = build_state(build_config())
    state.run_state = RunState.UNINITIALIZED
    return state


@cache
def get_stage() -> ChainStage:
    return ChainStage(build_new(), unsigned=True)


STATES: Final[dict[str, Callable[[], Coordinator]]] = {
    "new": build_new,
    "waiting": lambda: build_run().state,
    "warmup": lambda: build_warmup().state,
    "training": lambda: build_training(rounds=2).state,
    "cooldown": lambda: build_cooldown().state,
    "paused": lambda: build_paused_run().state,
}


@cache
def get_raw(name: str) -> bytes:
    return encode_state(STATES[name]())


def send(name: str, instruction: Instruction) -> int | None:
    """Send an instruction to a run in this state; return the number of its refusal."""
    stage = get_stage()
    raw = get_raw(name)
    stage.put_raw(raw)
    code = stage.refuse_unsigned(instruction)
    if code is None:
        decode_state(stage.raw)
    else:
        assert stage.raw == raw
    return code


def with_data(instruction: Instruction, data: bytes) -> Instruction:
    return Instruction(instruction.program_id, data, instruction.accounts)


def draw_data(data: Any, raw: bytes) -> bytes:
    """These bytes with up to two of them changed; now and then cut or continued."""
    edited = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 2))):
        place = data.draw(st.integers(0, len(edited) - 1))
        edited[place] = data.draw(st.sampled_from([0, 1, 2, 65, 127, 128, 195, 255]) | st.integers(0, 255))
    end = data.draw(st.integers(0, 20))
    if end == 1:
        return bytes(edited[: data.draw(st.integers(0, len(edited)))])
    return bytes(edited) + (b"\0" if end == 2 else b"")


@settings(max_examples=draw(400), deadline=None)
@given(st.sampled_from(list(STATES)), st.sampled_from([*USERS, *OWNERS]), st.binary(max_size=1_000))
def test_any_bytes(name: str, instruction: str, body: bytes) -> None:
    built = get_stage().build(ZERO32, msg.Pause() if instruction in OWNERS else msg.Tick(None))
    send(name, with_data(built, get_discriminator("global", instruction) + body))


@settings(max_examples=draw(1_000), deadline=None)
@given(st.data(), st.sampled_from(list(STATES)))
def test_bytes_near_those_of_a_message(data: Any, name: str) -> None:
    """Of messages that the state may accept, so that what is one byte away from them comes far."""
    state = decode_state(get_raw(name))
    epoch = state.progress.epoch
    messages = (
        *UPDATES, *UPDATES, msg.UpdateClientVersion("v" * 96), msg.Withdraw(epoch, 1),
        msg.WarmupWitness(epoch, 1, state.certified.digest), msg.HealthCheck(epoch, state.current.height, 1),
        msg.NameCheckpoint(epoch, state.certified.digest, HUB),
        msg.JudgeChallenge(epoch, state.current.height, 1, 0, 1),
        msg.ReportAudit(epoch, state.current.height, 1, 2, 0, 2, HASH),
    )  # fmt: skip
    sender = data.draw(st.sampled_from(state.clients)).p2p if state.clients else HASH
    built = get_stage().build(sender, data.draw(st.sampled_from(messages)))
    send(name, with_data(built, built.data[:8] + draw_data(data, built.data[8:])))


@example("paused", b"\0")
@given(st.sampled_from(["new", "paused"]), st.binary(min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_nothing_may_follow_a_body(name: str, rest: bytes) -> None:
    stage = get_stage()
    for message in (msg.SetRates(5, 6), msg.UpdateClientVersion("2"), *UPDATES):
        built = stage.build(ZERO32, message)
        assert send(name, with_data(built, built.data + rest)) == CoordinatorError.MALFORMED
    assert send(name, with_data(built, get_discriminator("global", "set_paused"))) == Anchor.NOT_UNDERSTOOD


def test_further_sources_stay_with_their_first_source_only() -> None:
    stage = get_stage()
    state = build_paused_run().state
    state.model.checkpoint = HUB
    state.model.extra_checkpoints[0] = Checkpoint(CheckpointKind.HUB, "org/second", "main")
    for source, kept in ((HUB, True), (Checkpoint(CheckpointKind.HUB, "org/model", "v2"), False)):
        stage.put(state)
        update = msg.Update(model=build_model(checkpoint=source, max_seq_len=32))
        stage.refuse_unsigned(stage.build(ZERO32, update))
        assert stage.state.model.checkpoint == source
        assert (stage.state.model.extra_checkpoints == state.model.extra_checkpoints) == kept
