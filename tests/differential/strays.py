"""Single messages of every kind at any time: plausible, late, from others, or senseless."""

from dataclasses import fields
from random import Random

from differential.odd_states import EDGES
from differential.pair import Pair
from psyche.core.committee.seeds import EXPIRED
from psyche.core.encoding.account import decode_config, decode_model, encode_config, encode_model
from psyche.core.encoding.fields import fits_text
from psyche.core.encoding.tables import CHECKPOINT
from psyche.core.state import messages as msg
from psyche.core.state.limits import BOOTSTRAP_BYTES, NOBODY
from psyche.core.state.messages import Message
from psyche.core.state.state import (
    ZERO32,
    Checkpoint,
    CheckpointKind,
    Config,
    Coordinator,
    Metadata,
    Model,
    Progress,
    WitnessFlag,
)
from psyche.errors import WireError
from psyche.testing.builders import build_hash, build_keys, build_model

MOST_U63 = (1 << 63) - 1
TEXTS = ("", "a", "org/model", "é" * 14, "x" * 64)


def draw_stray(draw: Random, pair: Pair, people: int) -> tuple[Message, bytes] | None:
    """A message and its sender; None where what was drawn cannot be written down."""
    state = pair.state
    member = draw.choice((*range(min(len(state.clients), 12)), 0, 200, 255))
    signer, p2p = build_keys(draw.randint(0, people + 1) if draw.random() < 0.8 else draw.randint(500, 505))
    keys = (signer, p2p, draw_member_key(draw, state, member), build_hash("stranger"), ZERO32)
    owner = draw.random() < 0.45
    message = draw_command(draw, state, signer) if owner else draw_member_message(draw, pair, member, people)
    if isinstance(message, msg.Join) and draw.random() < 0.8:
        return message, signer
    return None if message is None else (message, draw.choice(keys))


def draw_member_message(draw: Random, pair: Pair, member: int, people: int) -> Message | None:
    """What a member or a stranger may send, with names that are nearly right."""
    state = pair.state
    epoch, height = draw_near(draw, state.progress.epoch, 65_535), draw_near(draw, state.current.height, (1 << 32) - 1)
    p2p = draw.choice((build_keys(draw.randint(0, people))[1], build_hash("new", draw.randint(0, 3)), ZERO32))
    digest = draw.choice((state.certified.digest, build_hash("weights", 1), ZERO32))
    return draw.choice(
        (
            msg.Join(p2p, draw.choice((0, 0, 1, min(pair.now + 5, MOST_U63), MOST_U63))),
            msg.LeaveRun(),
            msg.Withdraw(epoch, member),
            msg.WarmupWitness(epoch, member, digest),
            msg.HealthCheck(epoch, height, member),
            draw_checkpoint(draw, state),
            msg.ReportEquivocation(epoch, height, member) if draw.random() < 0.6 else None,
            draw_audit(draw, state, epoch, height, member),
            msg.JudgeChallenge(epoch, height, member, draw.choice((0, 0, 0, 1, 15)), draw.randint(0, 1)),
            msg.WitnessMessage(epoch, height, member, WitnessFlag.NO_DIGEST, 0, 0, 0, 0, bytes(320), ZERO32, ZERO32),
        )
    )


def draw_audit(draw: Random, state: Coordinator, epoch: int, height: int, member: int) -> Message:
    target = draw.choice((*range(min(len(state.clients), 12)), 255, 300, NOBODY))
    piece = NOBODY if target == NOBODY and draw.random() < 0.8 else draw.choice((0, 7, NOBODY))
    reason = 0 if target == NOBODY and draw.random() < 0.8 else draw.choice((0, 1, 2, 5, 9, 10, 65_535))
    return msg.ReportAudit(epoch, height, member, target, piece, reason, draw.choice((build_hash("result"), ZERO32)))


def draw_command(draw: Random, state: Coordinator, signer: bytes) -> Message | None:
    """What the backend, the owner or whoever pays may send."""
    return draw.choice(
        (
            msg.Tick(draw.choice((None, EXPIRED, build_hash(draw.random())))),
            msg.Pause() if draw.random() < 0.4 else None,
            msg.Resume(),
            msg.Recover(draw.choice((0, 0, 7, 300, MOST_U63)), draw.choice((0, 15, 60))),
            msg.ReclaimSlot(),
            msg.SetRates(draw.choice((None, 0, 999, MOST_U63)), draw.choice((None, 0, 5, MOST_U63))),
            draw_collection(draw, state, signer),
            draw_collection(draw, state, signer),
            draw_update(draw, state),
            draw_update(draw, state),
            draw_metadata(draw),
            msg.UpdateClientVersion(draw.choice(("", "v1", "v2", "x" * 96, state.client_version))),
        )
    )


def draw_near(draw: Random, number: int, most: int) -> int:
    """This number, mostly; or one beside it."""
    return min(max(number + draw.choice((0, 0, 0, 0, 0, 1, -1)), 0), most)


def draw_member_key(draw: Random, state: Coordinator, member: int) -> bytes:
    if member >= len(state.clients):
        return build_hash("nobody")
    client = state.clients[member]
    return draw.choice((client.signer, client.p2p))


def draw_checkpoint(draw: Random, state: Coordinator) -> Message | None:
    kind = draw.choice(list(CheckpointKind))
    revision = draw.choice((None, "", "main", "r" * 64))
    source = Checkpoint(kind, draw.choice(TEXTS), None if kind is CheckpointKind.LOCAL else revision)
    if kind is CheckpointKind.EPHEMERAL:
        source = Checkpoint()
    mark = state.certified
    digest = draw.choice((mark.digest, mark.digest, mark.digest, build_hash("other"), ZERO32))
    return msg.NameCheckpoint(draw_near(draw, mark.epoch, 65_535), digest, source) if is_written(source) else None


def is_written(source: Checkpoint) -> bool:
    try:
        CHECKPOINT.write(source)
    except WireError:
        return False
    return True


def draw_collection(draw: Random, state: Coordinator, signer: bytes) -> Message:
    claims: list[msg.Claim] = []
    slots = state.registry.slots
    if draw.random() < 0.7:  # those that have earned something, if there are any
        slots = [slot for slot in slots if slot.earned] or slots
    for _ in range(draw.choice((1, 1, 2, 4))):
        slot = draw.choice(slots) if slots else None
        who = slot.signer if slot is not None and slot.signer != ZERO32 else signer
        earned = max(1, slot.earned) if slot is not None else 1
        claims.append((draw.choice((who, who, who, signer)), draw.choice((None, None, 1, earned, earned + 1))))
    return msg.Collect(tuple((who, amount if amount is None or amount < 1 << 64 else None) for who, amount in claims))


def draw_metadata(draw: Random) -> Message:
    name = draw.choice([text for text in TEXTS if fits_text(text, 64)])
    addresses = tuple(
        draw.choice(("/ip4/192.0.2.1/tcp/1", "/", "", "no", "/" + "x" * (BOOTSTRAP_BYTES - 1)))
        for _ in range(draw.choice((0, 1, 4)))
    )
    metadata = Metadata(name, draw.choice(("", "d" * 280)), draw.choice((0, 0, 7)), draw.choice((0, 1)))
    return msg.Update(metadata=draw.choice((None, metadata)), bootstrap=draw.choice((None, None, addresses)))


def draw_update(draw: Random, state: Coordinator) -> Message | None:
    """An update of settings, mostly a small change of those on record; most changes break a rule or change little."""
    config, model = decode_config(encode_config(state.config)), decode_model(encode_model(state.model))
    if draw.random() < 0.7:
        _change_config(draw, config)
    if draw.random() < 0.4:
        model = _change_model(draw, model)
    progress = Progress(
        draw_near(draw, state.progress.epoch, 65_535), draw.choice((state.progress.step, 0, 1, 3, 900)),
        draw.choice((state.progress.epoch_start_data_index, 0, 5, MOST_U63)),
    )  # fmt: skip
    message = msg.Update(
        draw.choice((None, config, config)), draw.choice((None, model)), draw.choice((None, None, None, progress)),
        first_weights=draw.choice((None, None, None, build_hash("weights"), state.certified.digest)),
        nonce=draw.choice((None, None, state.nonce, state.nonce + 1)),
    )  # fmt: skip
    try:
        encode_config(config)
        encode_model(model)
    except WireError:
        return None
    return message


def _change_config(draw: Random, config: Config) -> None:
    """Settings that runs go on with, and some at their edges."""
    tame = {
        "min_clients": (1, 2), "init_min_clients": (1, 2, 4), "rounds_per_epoch": (1, 2, 4), "witness_nodes": (0, 3),
        "overlap": (True, False), "evict_after": (1, 2), "late_limit": (1, 3), "verification_percent": (0, 40),
        "convict": (False, True),
        "straggler_percent": (0, 150), "total_steps": (1_000, 6), "entropy_delay": (0, 4), "min_stake": (0, 5),
    }  # fmt: skip
    name = draw.choice(list(tame))
    setattr(config, name, draw.choice(tame[name]))
    if draw.random() < 0.3:
        name = draw.choice([one.name for one in fields(config) if type(getattr(config, one.name)) is int])
        setattr(config, name, draw.choice(EDGES))


def _change_model(draw: Random, model: Model) -> Model:
    model.cooldown_sources = draw.choice((0, 1, 2, 4, 5))
    model.cold_start_warmup_steps = draw.choice((0, 0, 1, 1 << 20))
    if draw.random() < 0.3:
        source = Checkpoint(draw.choice(list(CheckpointKind)), draw.choice(TEXTS))
        return build_model(checkpoint=source, cooldown_sources=model.cooldown_sources)
    return model
