"""Somebody on the line to the data server: it reads no sample, and gives nobody another one."""

import struct
from pathlib import Path

import numpy as np
import trio
from kits.middle import open_middle

from psyche.data.client import RemoteData
from psyche.data.local import TokenRows
from psyche.data.server import DataServer
from psyche.testing.builders import build_identity
from psyche.wire.data import Rows, encode_data_reply

SERVER = build_identity("server")
ALICE = build_identity("alice")
LENGTH = 4
TOKENS = np.arange(100 * LENGTH, dtype="<u2")


def make_server(folder: Path) -> DataServer:
    TOKENS.tofile(folder / "tokens.bin")
    server = DataServer(TokenRows([folder], 2, LENGTH), SERVER)
    server.set_assignments(3, 5, {ALICE.public: (10, 19)})
    return server


async def test_rows_that_somebody_on_the_line_adds_are_not_taken_and_none_can_be_read(tmp_path: Path) -> None:
    server = make_server(tmp_path)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(lambda task_status: server.serve("127.0.0.1", 0, task_status=task_status))
        async with open_middle(port) as middle:
            alice = RemoteData(f"127.0.0.1:{middle.port}", ALICE, sequence_length=LENGTH, expected_server=SERVER.public)
            expected = TOKENS[10 * LENGTH : 20 * LENGTH]
            assert await alice.get(10, 19, epoch=3, height=5) == expected.astype("<u4").tobytes()
            first = middle.sessions[0]
            false = encode_data_reply(Rows(10, 19, LENGTH, 2, bytes(80)))
            await first.client.send_all(struct.pack("<I", len(false)) + false)
            assert await alice.get(10, 19, epoch=3, height=5) == expected.astype("<u4").tobytes()
            assert len(middle.sessions) == 2, "the connection was made anew"
            for session in middle.sessions:
                assert expected.tobytes() not in session.to_client
                assert ALICE.public not in session.to_server
            await alice.aclose()
        nursery.cancel_scope.cancel()
