"""The data server inside the coordinator: each member gets the samples of its round, nobody anything else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
from kits.runs import accuse, build_run, find_jury, find_verifiers
from kits.server import CLIENTS, SERVER, Members, RunFile, build_file, build_handler

from psyche.config.load import LoadedData
from psyche.core.committee.assignment import compute_assignments
from psyche.core.state.state import Coordinator, DataLocation, DataLocationKind, RunState
from psyche.data.client import RemoteData
from psyche.data.files import open_token_file
from psyche.data.local import make_folder_manifest
from psyche.errors import ConfigError, DataError
from psyche.server.server import ServerSettings, open_run_data, run_server
from psyche.testing.builders import build_model
from psyche.wire.crypto import blob_id_of
from psyche.wire.data import PURPOSE
from psyche.wire.line.framing import FrameStream
from psyche.wire.line.handshake import client_handshake
from psyche.wire.line.tls import open_tls

TOKENS = np.arange(16 * 200, dtype="<u2") % 250


def write_data(folder: Path, sequence_length: int = 16) -> LoadedData:
    folder.mkdir(exist_ok=True)
    TOKENS.tofile(folder / "data.bin")
    return LoadedData(folder, 2, sequence_length, None, folder / "data.toml")


def build_run_file(address: str) -> RunFile:
    model = build_model(data_location=DataLocation(DataLocationKind.SERVER, address))
    return replace(build_file(rounds_per_epoch=20, total_steps=1_000), model=model)


def build_training(address: str = "127.0.0.1:45001") -> Coordinator:
    members = Members(build_handler(build_run_file(address).build_state()))
    members.join_all()
    members.warm_up()
    return members.handler.state


async def test_members_get_the_samples_that_the_record_assigns_to_them(tmp_path: Path) -> None:
    state = build_training()
    data = open_run_data(state, write_data(tmp_path), SERVER, "127.0.0.1")
    data._port = 0
    async with trio.open_nursery() as nursery:
        port = await nursery.start(data.serve)
        data.update(state)
        ranges = compute_assignments(state.current, state.config)
        assert len(ranges) == 3
        for identity in CLIENTS[:3]:
            member = next(m for m, c in enumerate(state.clients) if c.p2p == identity.public)
            first, last = ranges[member]
            provider = RemoteData(f"127.0.0.1:{port}", identity, sequence_length=16, expected_server=SERVER.public)
            raw = await provider.get(first, last, epoch=0, height=0)
            assert np.array_equal(np.frombuffer(raw, "<u4"), TOKENS[first * 16 : (last + 1) * 16])
            with pytest.raises(DataError, match=r"not yours|are assigned"):
                await provider.get(last + 1, last + 1, epoch=0, height=0)
            await provider.aclose()
        nursery.cancel_scope.cancel()


def test_each_new_round_is_served_once_and_other_phases_change_nothing(tmp_path: Path) -> None:
    state = build_training()
    data = open_run_data(state, write_data(tmp_path), SERVER, "127.0.0.1")
    calls: list[tuple[int, int]] = []
    data.server.set_assignments = lambda epoch, height, *_: calls.append((epoch, height))
    data.update(state)
    data.update(state)
    state.run_state = RunState.ROUND_WITNESS
    data.update(state)
    state.current.height = 1
    data.update(state)
    state.run_state = RunState.COOLDOWN
    state.current.height = 2
    data.update(state)
    assert calls == [(0, 0), (0, 1)]


@pytest.mark.parametrize("address", ["host", "host:", "host:0", "host:70000", ""])
def test_a_data_location_without_a_usable_port_is_a_clear_error(address: str, tmp_path: Path) -> None:
    state = build_training()
    state.model.data_location.address = address
    with pytest.raises(ConfigError, match="port 1 to 65535"):
        open_run_data(state, write_data(tmp_path), SERVER, "127.0.0.1")


def test_data_of_another_sequence_length_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seq_len: 32, but the run's max_seq_len is 16"):
        open_run_data(build_training(), write_data(tmp_path, 32), SERVER, "127.0.0.1")


async def test_a_server_of_a_run_with_served_data_listens_on_the_port_of_its_data_location(tmp_path: Path) -> None:
    probe = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = probe[0].socket.getsockname()[1]
    await probe[0].aclose()
    settings = ServerSettings(
        run=build_run_file(f"127.0.0.1:{port}"),
        identity=SERVER,
        state_dir=tmp_path / "state",
        data_files=write_data(tmp_path / "data"),
    )
    async with trio.open_nursery() as nursery:
        bound = await nursery.start(run_server, settings)
        assert bound.data_port == port
        stream, channel = await open_tls("127.0.0.1", port)
        frames = FrameStream(stream, 1 << 20)
        await client_handshake(frames, CLIENTS[0], PURPOSE, channel, SERVER.public, 30)
        await frames.aclose()
        nursery.cancel_scope.cancel()


def test_a_server_with_other_data_than_the_record_s_does_not_serve_it_and_names_the_file(tmp_path: Path) -> None:
    state, data, manifest = build_training(), write_data(tmp_path / "data"), tmp_path / "data.manifest"
    raw = make_folder_manifest([open_token_file(data.folder / "data.bin", 2)], is_hashed=True)
    manifest.write_bytes(raw)
    state.config.data_root = blob_id_of(raw)
    open_run_data(state, data, SERVER, "127.0.0.1", manifest)
    (TOKENS ^ 1).tofile(data.folder / "data.bin")
    with pytest.raises(ConfigError, match=r"not those of the run .*: data.bin has other bytes in its MiB 0; take the"):
        open_run_data(state, data, SERVER, "127.0.0.1", manifest)
    with pytest.raises(ConfigError, match="only its manifest says"):
        open_run_data(state, data, SERVER, "127.0.0.1")


def test_verifiers_and_jurors_of_the_four_rounds_after_it_may_have_a_rounds_samples(tmp_path: Path) -> None:
    """V8."""
    run = build_run(8, verification_percent=30, convict=True, rounds_per_epoch=30, witness_nodes=3).warm_up()
    data = open_run_data(build_training(), write_data(tmp_path), SERVER, "127.0.0.1")
    seen: dict[int, set[bytes]] = {}
    jury: set[int] = set()

    def follow() -> None:
        data.update(run.state)
        height = run.state.current.height
        entitled = {run.state.clients[m].p2p for m in (*find_verifiers(run), *jury)}
        for before in range(max(0, height - 4), height):
            seen.setdefault(before, set()).update(entitled)
        audited = data.server._now.audited
        if height:
            assert {h: one.keys for h, one in audited.items() if h < height} == {
                h: seen[h] for h in range(max(0, height - 4), height)
            }
        else:  # everybody computes the epoch's first sample (V6)
            assert {(one.first, one.last, len(one.keys)) for one in audited.values()} == {(0, 0, 8)}

    follow()
    while not find_verifiers(run) or run.state.current.height < 2:
        run.run_round()
        follow()
    accuse(run)
    for _ in range(5):
        run.run_round()
        challenge = run.state.challenges[0]
        judged = run.state.current.height in (challenge.deadline_height - 1, challenge.deadline_height)
        jury = set(find_jury(run)) if judged and run.state.current.height < challenge.deadline_height else jury
        jury = jury if judged else set()
        follow()
