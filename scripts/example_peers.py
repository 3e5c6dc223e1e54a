"""The two peers and the run of the examples on docs/peer-protocol.md."""

from typing import Final

from psyche.wire import address_record
from psyche.wire.crypto import (
    Identity,
)

ALICE, BOB = Identity(b"\x01" * 32), Identity(b"\x02" * 32)
RUN_UID, PLAN_HASH, CHALLENGE = b"\x07" * 32, b"\x09" * 32, b"\x0c" * 32
EXPIRES_UNIX: Final = 1_800_000_000


def build_record(identity: Identity, port: int) -> address_record.AddressRecord:
    return address_record.sign_address_record(identity, [f"/ip4/192.0.2.7/tcp/{port}"], EXPIRES_UNIX)
