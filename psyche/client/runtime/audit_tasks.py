"""An audit as the trainer is asked for it: tokens, payloads and weights of the batch; and evidence files (V8, V13)."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from psyche.client.engine import actions as act
from psyche.client.runtime.trainer_inputs import DataAhead, PayloadCache
from psyche.client.runtime.weights.replay import ReplayStore, make_apply_request
from psyche.core.encoding.evidence import NEEDED, Evidence, encode_evidence
from psyche.core.encoding.work import choose_piece_samples
from psyche.core.state.state import ZERO32, Coordinator, DataType
from psyche.errors import DataError, NetworkError
from psyche.wire.ports import Trainer
from psyche.wire.trainer import (
    ApplyRequest,
    AuditedTarget,
    AuditReply,
    AuditRequest,
    AuditTarget,
    LinkRequest,
    OpenRequest,
    WorkRequest,
    get_applied_heights,
)

BATCHES_KEPT: Final = 32
SUFFIX: Final = ".evidence"


class AuditContext(Protocol):
    @property
    def state(self) -> Coordinator: ...

    async def wait_for_replay(self) -> None: ...


class AuditTasks:
    """Carries out audits; batches of others are kept for a while."""

    def __init__(
        self, trainer: Trainer, data: DataAhead, payloads: PayloadCache, replay: ReplayStore,
        context: AuditContext,
    ) -> None:  # fmt: skip
        self._trainer = trainer
        self._data = data
        self._payloads = payloads
        self._replay = replay
        self._x = context
        self._batches: OrderedDict[tuple[int, int, int, int], bytes] = OrderedDict()
        self.is_running = False

    async def do(self, action: act.Audit, *, is_in_the_way: Callable[[], bool]) -> act.Audited:
        """Ask the trainer; not while other requests wait for it, since training comes first."""
        self.is_running = True
        try:
            request, refused = await self._make_request(action)
            if is_in_the_way():
                return act.Audited(action, AuditReply(targets=(), seconds=0.0, cancelled=True))
            if request is None:
                why = next(iter(refused.values()), "a set since the trainer's copy of the weights is not here")
                return act.Audited(action, None, why)
            return act.Audited(action, _merge(action, await self._trainer.audit(request), refused))
        finally:
            self.is_running = False

    async def open(self, action: act.Open) -> bytes:
        chunks = self._x.state.config.opened_chunks
        request = OpenRequest(height=action.height, seed=action.seed, opened_chunks=chunks)
        return (await self._trainer.open(request)).opening

    async def make_work(self, action: act.Train) -> WorkRequest | None:
        """What a trainer shows of the batch that it is to train; raises DataError or NetworkError."""
        if not action.seed:
            return None
        first, calibration = action.first_sample, b""
        if first is not None:
            calibration = await self._data.provider.get(first, first, epoch=action.epoch, height=action.height)
        return WorkRequest(
            seed=action.seed, piece_samples=choose_piece_samples(action.end - action.start + 1),
            calibration=calibration,
        )  # fmt: skip

    async def cancel(self, _action: act.Action) -> None:
        """End the running audit at its next micro-batch."""
        if self.is_running:
            await self._trainer.cancel()

    async def write_evidence(self, action: act.KeepEvidence, folder: Path, kept: int) -> Path:
        """Write what a member was judged by; raises DataError, NetworkError, WireError or OSError."""
        case, evidence, link = action.case, action.evidence, action.case.link
        last = case.last if link is None or link.taken_out == ZERO32 else link.taken_out
        needed = NEEDED[evidence.reason]
        evidence = replace(
            evidence,
            last_result=evidence.last_result + self._get(last) if needed else evidence.last_result,
            tokens=await self._get_batch(action.epoch, case) if "tokens" in needed else b"",
            payload=self._get(case.payload) if "payload" in needed else b"",
            opening=self._get(link.opening) if link is not None and "opening" in needed else b"",
        )  # fmt: skip
        path = _get_evidence_path(folder, action)
        await trio.to_thread.run_sync(_write_evidence, path, evidence, kept)
        return path

    def _get(self, blob: bytes) -> bytes:
        found = self._find(blob)
        if found is None:
            raise DataError(f"evidence: what it needs, {blob.hex()[:16]}, is no longer here")
        return found

    async def _get_batch(self, epoch: int, case: act.Case) -> bytes:
        """The tokens of a member's batch; raises DataError or NetworkError."""
        key = (epoch, case.height, case.start, case.end)
        if key not in self._batches:
            self._batches[key] = await self._data.provider.get(case.start, case.end, epoch=epoch, height=case.height)
            while len(self._batches) > BATCHES_KEPT:
                self._batches.popitem(last=False)
        return self._batches[key]

    async def _find_target(self, epoch: int, case: act.Case) -> AuditTarget | str:
        """A case as the trainer takes it; or why it cannot be recomputed here."""
        payload, last, link = self._find(case.payload), self._find(case.last), self._find_link(case.link)
        if payload is None or last is None or isinstance(link, str):
            return "a payload of the member, or what it opened, is no longer here"
        try:
            tokens = await self._get_batch(epoch, case)
        except (DataError, NetworkError) as error:
            return f"data: {error}"
        model = self._x.state.model
        return AuditTarget(
            tokens=tokens,
            samples=case.end - case.start + 1,
            sequence_length=model.max_seq_len,
            piece_samples=case.piece_samples,
            pieces=case.pieces,
            numeric_class=case.numeric_class,
            lookahead_lr=case.lookahead_lr,
            last_body=last,
            has_labels=model.data_type is DataType.FINETUNING,
            payload=payload,
            link=link,
            local=case.local,
        )

    def _find_link(self, link: act.Link | None) -> LinkRequest | str | None:
        if link is None:
            return None
        opening, taken_out = self._find(link.opening), self._find(link.taken_out)
        if opening is None or taken_out is None:
            return "it is no longer here"
        return LinkRequest(
            momentum_before=link.momentum_before, momentum_after=link.momentum_after, opening=opening, seed=link.seed,
            opened_chunks=self._x.state.config.opened_chunks, lr=link.lr, taken_out=(taken_out,) if taken_out else (),
        )  # fmt: skip

    def _find(self, blob: bytes) -> bytes | None:
        found = (b"",) if blob == ZERO32 else self._payloads.find((blob,))
        return None if found is None else found[0]

    async def _find_applies(self, epoch: int, height: int) -> tuple[ApplyRequest, ...] | None:
        """The sets between the trainer's copy of the weights and this height; None if one is not here."""
        await self._x.wait_for_replay()
        found: list[ApplyRequest] = []
        for number in get_applied_heights(height):
            stored = await trio.to_thread.run_sync(self._replay.read, epoch, number)
            if stored is None:
                return None
            found.append(make_apply_request(*stored))
        return tuple(found)

    async def _make_request(self, action: act.Audit) -> tuple[AuditRequest | None, dict[int, str]]:
        """The request, None if there is nothing to ask; and why cases, by their place, are not in it."""
        applies = await self._find_applies(action.epoch, action.height)
        targets = [await self._find_target(action.epoch, case) for case in action.cases]
        refused = {place: target for place, target in enumerate(targets) if isinstance(target, str)}
        asked = tuple(target for target in targets if isinstance(target, AuditTarget))
        if applies is None or not asked:
            return None, refused
        return AuditRequest(height=action.height, seeds=action.seeds, targets=asked, applies=applies), refused


def _merge(action: act.Audit, reply: AuditReply, refused: dict[int, str]) -> AuditReply:
    """The trainer's reply with the cases that it was not asked about, in their places."""
    given = iter(reply.targets)
    targets: list[AuditedTarget] = []
    for place in range(len(action.cases)):
        why = refused.get(place)
        found = next(given, None) if why is None else AuditedTarget(pieces=(), refused=why)
        if found is None:
            break
        targets.append(found)
    return msgspec.structs.replace(reply, targets=tuple(targets))


def _get_evidence_path(folder: Path, action: act.KeepEvidence) -> Path:
    where = f"epoch-{action.epoch:05d}-round-{action.height:06d}-member-{action.member:03d}"
    return folder / f"{where}-{action.evidence.reason.name.lower()}-{action.evidence.piece:05d}{SUFFIX}"


def _write_evidence(path: Path, evidence: Evidence, kept: int) -> None:
    """Write a file and remove the oldest beyond so many."""
    raw = encode_evidence(evidence)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    files = sorted(path.parent.glob(f"*{SUFFIX}"), key=lambda file: file.stat().st_mtime)
    for old in files[: max(0, len(files) - kept)]:
        old.unlink()
