"""Where weights come from, and what is believed of those who offer them (P6, S2, S8, S9, B17, B21)."""

from pathlib import Path

import msgspec
import pytest
import trio
from runtime_kit import CHAIN, FILES, KEYS, Place, answer_with, build_offer
from trio.testing import MockClock

from psyche.client.runtime.weights.loading import MANIFEST_TIMEOUT_S, PARTS, compute_offer_digest, get_snapshot_folder
from psyche.client.runtime.weights.serving import read_offer
from psyche.core.encoding.manifest import TensorEntry, decode_manifest, encode_manifest
from psyche.core.state.state import ZERO32, Checkpoint, CheckpointKind, Client, Mark
from psyche.errors import NetworkError, TrainerError
from psyche.modeling.snapshot import read_snapshot_info
from psyche.telemetry import types
from psyche.testing.builders import build_hash
from psyche.testing.dummy_trainer import DummyTrainer, build_weights
from psyche.wire.crypto import blake3_hash, blob_id_of, compute_state_digest
from psyche.wire.ports import SyncReply, SyncRequest
from psyche.wire.trainer import SnapshotRequest


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.network.blobs = {blob_id_of(b"w" * 32): b"w" * 32, blob_id_of(b"{}"): b"{}"}
    return place


# --- own disk and configured source


async def test_an_own_snapshot_is_found_by_its_digest_alone(place: Place) -> None:
    digest = await place.write_snapshot()
    source = await place.loader.find_local(digest)
    assert source is not None
    assert (source.is_snapshot, source.name) == (True, types.WeightSource.OWN_SNAPSHOT)
    assert await place.loader.find_local(build_hash("other")) is None


def test_the_configured_folder_is_a_source_where_it_may_give_the_weights(place: Place) -> None:
    """S8: its digest is known from the checkpoint on record, or not at all."""
    digest = build_hash("asked for")
    assert place.loader.find_configured(place.state, digest, digest) is None, "there is no such folder"
    (place.root / "model").mkdir()
    for source_digest, may in ((digest, True), (ZERO32, True), (build_hash("another"), False)):
        assert (place.loader.find_configured(place.state, digest, source_digest) is not None) == may
    assert place.loader.find_configured(place.state, None, build_hash("another")) is not None


def test_a_source_of_another_kind_is_said_only_where_nothing_else_can_help(place: Place) -> None:
    place.state.model.checkpoint = Checkpoint(CheckpointKind.P2P, "someone/model")
    assert place.loader.find_configured(place.state, build_hash("asked for"), ZERO32) is None, "peers may have it"
    with pytest.raises(TrainerError, match="P2P: this client loads Local sources only"):
        place.loader.find_configured(place.state, None, ZERO32)


# --- peers


async def test_weights_of_a_peer_become_an_own_snapshot_under_the_names_of_the_record(place: Place) -> None:
    """S9; epoch, step and data index are the record's, whatever the peer says."""
    offer, digest = build_offer()
    place.state.certified = Mark(digest=digest, epoch=2, step=20, data_index=200)
    place.network.answers = {KEYS[1]: answer_with(offer)}
    source = await place.fetch(digest)
    info = read_snapshot_info(source.path)
    assert source.name == types.WeightSource.PEERS
    assert (info.epoch, info.step, info.data_index) == (2, 20, 200)
    assert (info.digest, info.chain) == (digest, CHAIN)
    assert [p.name for p in place.snapshots.iterdir()] == [get_snapshot_folder(2, 20, digest)], "no parts are left"
    assert place.network.withdrawn == [blob_id_of(b"w" * 32), blob_id_of(b"{}")], (
        "the files have moved into the snapshot"
    )


async def test_parts_of_other_weights_whose_fetch_failed_are_removed(place: Place) -> None:
    offer, digest = build_offer()
    place.network.answers = {KEYS[1]: answer_with(offer)}
    left = place.snapshots / ".parts-0123456789abcdef"
    left.mkdir(parents=True)
    (left / "blob").write_bytes(b"half")
    source = await place.fetch(digest)
    assert [p.name for p in place.snapshots.iterdir()] == [source.path.name]


async def test_a_manifest_that_does_not_give_the_digest_is_refused_and_the_next_peer_asked(place: Place) -> None:
    """S9, B17: trusts no peer."""
    offer, digest = build_offer()
    false, _ = build_offer(chain=build_hash("another chain"))
    poisoned, _ = build_offer(manifest=build_offer(b"p" * 32)[0].manifest)
    first, second, third = sorted(KEYS[1:4])
    place.network.answers = {first: answer_with(false), second: answer_with(poisoned), third: answer_with(offer)}
    source = await place.fetch(digest)
    assert read_snapshot_info(source.path).digest == digest
    assert [peer for peer, _ in place.network.asked] == [first, second, third]


async def test_silent_peers_delay_a_fetch_by_less_than_their_timeouts(
    place: Place, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T8: half of a Warmup is all that a client has."""
    offer, digest = build_offer()
    *silent, honest = sorted(KEYS[1:])
    place.network.answers = {honest: answer_with(offer)}
    ask = place.network.ask

    async def keep_silent(peer: bytes, request: SyncRequest, *, timeout_s: float) -> SyncReply:
        if peer in silent:
            await trio.sleep(timeout_s)
            raise NetworkError("no answer")
        return await ask(peer, request, timeout_s=timeout_s)

    monkeypatch.setattr(place.network, "ask", keep_silent)
    monkeypatch.setattr(place.network, "connected", lambda: frozenset(KEYS[1:]))
    began = trio.current_time()
    source = await place.fetch(digest)
    assert read_snapshot_info(source.path).digest == digest
    assert trio.current_time() - began < MANIFEST_TIMEOUT_S


@pytest.mark.parametrize("raw", [b"", b"noise", msgspec.msgpack.encode({"manifest": 5})])
async def test_an_answer_that_is_no_manifest_is_no_offer(place: Place, raw: bytes) -> None:
    place.network.answers = {KEYS[1]: answer_with(raw)}
    with pytest.raises(NetworkError, match="does not have it"):
        await place.fetch(build_hash("asked for"))
    assert read_offer(raw) is None


async def test_without_a_peer_that_has_them_the_reason_is_said(place: Place) -> None:
    with pytest.raises(NetworkError, match="no peer is connected"):
        await place.fetch(build_hash("asked for"))
    place.network.answers = {KEYS[1]: lambda _request: SyncReply(found=False)}
    with pytest.raises(NetworkError, match="does not have it"):
        await place.fetch(build_hash("asked for"))


async def test_a_tensor_with_other_bytes_is_refused(place: Place) -> None:
    """S9: each piece must give its hash."""
    offer, digest = build_offer()
    place.network.answers = {KEYS[1]: answer_with(offer)}
    place.network.blobs[blob_id_of(b"w" * 32)] = b"x" * 32
    with pytest.raises(TrainerError, match=r"is not weight\.00 of the manifest"):
        await place.fetch(digest)
    assert place.get_digests() == set()


async def test_equal_tensors_are_fetched_once_and_written_twice(place: Place) -> None:
    entries = [TensorEntry(name, (8,), blob_id_of(b"w" * 32)) for name in ("a", "b")]
    manifest = encode_manifest(entries, FILES)
    offer, _ = build_offer(manifest=manifest)
    digest = compute_state_digest(CHAIN, blake3_hash(manifest))
    place.network.answers = {KEYS[1]: answer_with(offer)}
    source = await place.fetch(digest)
    assert [e.name for e in read_snapshot_info(source.path).entries] == ["a", "b"]


async def test_parts_and_a_killed_comparison_are_removed_once_weights_are_loaded(place: Place) -> None:
    for left in (f"{PARTS}0123456789abcdef", ".heal/own"):
        (place.snapshots / left).mkdir(parents=True)
        (place.snapshots / left / "blob").write_bytes(b"half")
    digest = await place.write_snapshot()
    await place.loader.remove_leftovers()
    assert [path.name for path in place.snapshots.iterdir()] == [get_snapshot_folder(0, 1, digest)]


@pytest.mark.parametrize("one_bit", [True, False])
async def test_a_refused_peer_is_named_and_not_asked_again_for_these_weights(place: Place, one_bit: bool) -> None:
    """B25."""
    place.state.model.optimizer.quantize_1bit = one_bit
    offer, _ = build_offer()
    for manifest, reason in (
        (offer.manifest[:-1] + b"?", "does not give the digest"),
        (offer.manifest.replace(b"config.json", b"config.jsom"), "give the digest" if one_bit else "is not allowed in"),
    ):
        asked_for, other = build_hash(manifest, "asked"), build_hash(manifest, "other")
        place.network.answers = {KEYS[1]: answer_with(msgspec.structs.replace(offer, manifest=manifest))}
        for digest, again in ((asked_for, False), (asked_for, True), (other, False)):
            with pytest.raises(NetworkError, match="not asked again" if again else reason):
                await place.fetch(digest)
    assert [request.key for _, request in place.network.asked].count(asked_for) == 1
    assert place.log.kinds == [types.SourceRefused] * 4
    assert {refused.peer for refused in place.log.get(types.SourceRefused)} == {KEYS[1]}
    assert place.network.fetched == []


# --- P6: what is kept


async def test_the_certified_snapshot_and_the_one_written_last_are_kept_and_served(place: Place) -> None:
    """P6."""
    old = await place.write_snapshot("old", epoch=0, step=5)
    certified = await place.write_snapshot("certified", epoch=1, step=10)
    newest = await place.write_snapshot("newest", epoch=2, step=15)
    await place.loader.keep(certified, newest)
    assert place.get_digests() == {certified, newest}
    for digest, served in ((old, False), (certified, True), (newest, True)):
        reply = await place.serving.answer(KEYS[1], SyncRequest("manifest", key=digest))
        assert reply.found == served


async def test_of_two_snapshots_of_one_step_the_one_written_last_is_kept(place: Place) -> None:
    """P2, P6: a repeated last drain round has the step of the first; only the second can be certified."""
    certified = await place.write_snapshot("certified", epoch=1, step=10)
    one, other = [await place.write_snapshot(name, epoch=2, step=15) for name in ("first", "second")]
    await place.loader.keep(certified, other)
    assert place.get_digests() == {certified, other}
    again = await place.write_snapshot("first", epoch=2, step=15)
    assert again == one
    await place.loader.keep(certified, one)
    assert place.get_digests() == {certified, one}


async def test_blobs_that_a_kept_snapshot_shares_are_still_offered(place: Place) -> None:
    first = await place.write_snapshot("same weights", epoch=0, step=1, chain=build_hash(1))
    second = await place.write_snapshot("same weights", epoch=1, step=2, chain=build_hash(2))
    await place.loader.keep(first, second)
    third = await place.write_snapshot("other weights", epoch=2, step=3)
    await place.loader.keep(third, second)
    assert place.get_digests() == {second, third}
    assert place.network.withdrawn == [], "the second snapshot's weights are those of the first"
    fourth = await place.write_snapshot("yet other weights", epoch=3, step=4)
    await place.loader.keep(third, fourth)
    assert place.network.withdrawn == [blob_id_of(build_weights("same weights").tobytes())]


# --- serving


async def test_a_manifest_says_what_a_joiner_needs(place: Place) -> None:
    """S9: one client's snapshot is another's source."""
    digest = await place.write_snapshot(epoch=1, step=10)
    await place.loader.keep(digest, digest)
    reply = await place.serving.answer(KEYS[1], SyncRequest("manifest", key=digest))
    offer = read_offer(reply.items[0])
    assert offer is not None
    assert (offer.chain, offer.epoch, offer.step, offer.data_index) == (CHAIN, 1, 10, 100)
    assert compute_offer_digest(place.state.model, offer) == digest
    assert [file.name for file in decode_manifest(offer.manifest).files] == ["config.json"]
    assert blob_id_of(b"{}") in place.network.offered


async def test_questions_that_cannot_be_answered_are_answered_with_not_found(place: Place) -> None:
    for request in (
        SyncRequest("manifest", key=build_hash("unknown")),
        SyncRequest("table", key=build_hash("unknown")),
        SyncRequest("announcements", epoch=1, height=2),
        SyncRequest("replay", epoch=1, height=2),
        SyncRequest("anything"),
    ):
        assert await place.serving.answer(KEYS[1], request) == SyncReply(found=False)
    assert await place.serving.answer(KEYS[2], SyncRequest("table", key=KEYS[1])) == SyncReply(True, (b"signed",))


# --- S2: full values


async def test_in_full_value_mode_the_first_members_copy_leads(tmp_path: Path) -> None:
    """S2: all go on from one copy, one's own where one comes first."""
    place = Place(tmp_path)
    place.state.model.optimizer.quantize_1bit = False
    place.state.clients = [Client(p2p=key) for key in KEYS[:3]]
    trainer = DummyTrainer(name="own", one_bit=False)
    digest = compute_state_digest(CHAIN, trainer.compute_part())
    path = place.snapshots / get_snapshot_folder(0, 1, digest)
    request = SnapshotRequest(
        kind="resume", path=str(path), epoch=0, step=1, data_index=0, chain=CHAIN, digest=digest
    )  # fmt: skip
    await trainer.snapshot(request)
    source = await place.loader.find_leading(place.state, digest, 1e9)
    assert source is not None
    assert source.name == types.WeightSource.OWN_SNAPSHOT
    assert place.network.asked == [], "it is the first member itself"
    place.network.key = KEYS[2]
    others = build_weights("others").tobytes()
    offer, _ = build_offer(others)
    place.network.answers = {KEYS[1]: answer_with(offer)}
    place.network.blobs = {blob_id_of(others): others, blob_id_of(b"{}"): b"{}"}
    source = await place.loader.find_leading(place.state, digest, 1e9)
    assert source is not None
    assert source.name == types.WeightSource.PEERS
    assert [peer for peer, _ in place.network.asked] == [KEYS[0], KEYS[1]], "the first of them is not connected"
