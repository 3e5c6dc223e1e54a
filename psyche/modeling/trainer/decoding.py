"""Payloads of local steps, decoded in a thread as they arrive: a merge or an apply finds them ready."""

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Final

from psyche.core.encoding.plan import TransformPlan
from psyche.modeling.distro.codec import ChunkSets, decode_payload
from psyche.wire.crypto import blake3_hash

KEPT_BYTES: Final = 1 << 29  # of payloads; decoded they take two to three times as much


class PayloadDecoder:
    """Keeps the newest payloads decoded, up to `KEPT_BYTES`; any other one is decoded when it is asked for.

    `prepare` may be called from any thread.
    """

    def __init__(self, plan: TransformPlan) -> None:
        self._plan = plan
        self._kept: OrderedDict[bytes, Future[list[ChunkSets]]] = OrderedDict()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="decode")

    def prepare(self, payload: bytes) -> None:
        """Begin to decode a payload. If it is malformed, `decode` says so."""
        key = blake3_hash(payload)
        if key not in self._kept:
            self._kept[key] = self._thread.submit(decode_payload, self._plan, payload)
        while len(self._kept) * len(payload) > KEPT_BYTES:  # well-formed ones have one length
            self._kept.popitem(last=False)

    def decode(self, payload: bytes) -> Sequence[ChunkSets]:
        ready = self._kept.get(blake3_hash(payload))
        return decode_payload(self._plan, payload) if ready is None else ready.result()
