"""Address records on disk: a node that starts again finds its peers, even if nobody is there to tell where (N5)."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from psyche.core.state.limits import MAX_CLIENTS
from psyche.durable import make_folder, read_file, replace_file
from psyche.errors import WireError
from psyche.network.addresses.table import ITEM_BYTES
from psyche.wire.address_record import AddressRecord, check_address_record
from psyche.wire.msgpack import UNREADABLE

_log: Final = logging.getLogger("psyche.network")
FILE_NAME: Final = "addresses.bin"
KEEP_EVERY_S: Final = 10.0
MAX_FILE_BYTES: Final = MAX_CLIENTS * ITEM_BYTES


class _File(msgspec.Struct, frozen=True, array_like=True):
    version: Literal[1]
    records: Annotated[tuple[AddressRecord, ...], msgspec.Meta(max_length=MAX_CLIENTS)]


_decoder: Final = msgspec.msgpack.Decoder(_File)


class KeptAddresses:
    """The file of a node's address records; its methods block.

    A file that is missing, damaged or not writable costs the node nothing but the records: peers tell them again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: tuple[AddressRecord, ...] = ()
        self._failure = ""

    def load(self) -> tuple[AddressRecord, ...]:
        """Read the records that their keys have signed, at most 256; what is wrong is logged and left out."""
        try:
            found = _decoder.decode(read_file(self._path, MAX_FILE_BYTES)).records
        except FileNotFoundError:
            return ()
        except (OSError, WireError, *UNREADABLE) as error:
            self._say(f"address records of the last start, {self._path}: not read, peers tell them again: {error}")
            return ()
        return tuple(record for record in found if self._is_signed(record))

    def _is_signed(self, record: AddressRecord) -> bool:
        try:
            check_address_record(record)
        except WireError as error:
            self._say(f"{self._path}: the record of {record.p2p.hex()[:16]} is left out: {error}")
            return False
        return True

    def save(self, records: Sequence[AddressRecord]) -> None:
        """Replace the file if these records are others than those written last; never by an empty one."""
        kept = tuple(sorted(records, key=lambda record: (-record.expires_unix, record.p2p))[:MAX_CLIENTS])
        if kept in ((), self._written):
            return
        try:
            make_folder(self._path.parent)
            raw = msgspec.msgpack.encode(_File(1, kept))
            replace_file(self._path, raw, self._path.with_name(f".{self._path.name}.tmp"))
        except OSError as error:
            self._say(f"address records are not kept for the next start: {error}")
        else:
            self._written = kept

    def _say(self, text: str) -> None:
        if text != self._failure:
            self._failure = text
            _log.warning("%s", text)
