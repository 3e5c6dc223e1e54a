"""The engine's requests to the trainer, run one after another, and the restart of a failed trainer."""

import contextlib
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from psyche.client.engine import actions as act
from psyche.client.runtime.audit_tasks import AuditTasks
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.trainer_inputs import DataAhead, PayloadCache
from psyche.client.runtime.weights.exporting import build_run_card, get_export_path, measure_export, remove_old_exports
from psyche.client.runtime.weights.heal_tasks import HealContext, HealTasks
from psyche.client.runtime.weights.loading import Loader, Reasons, Source, get_snapshot_folder
from psyche.client.runtime.weights.remote import list_places
from psyche.client.runtime.weights.replay import ReplayStore, make_apply_request
from psyche.core.rules.rounds import get_next_data_index
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import ZERO32, DataType
from psyche.core.state.timeline import get_round
from psyche.errors import DataError, NetworkError, PsycheError, TrainerError, UnusableDataError
from psyche.modeling.trainer.failure import TrainerFailure
from psyche.network.streams import Signal
from psyche.telemetry import types
from psyche.telemetry.types import WeightSource
from psyche.wire.crypto import compute_data_hash, compute_state_digest
from psyche.wire.ports import Trainer
from psyche.wire.trainer import (
    CANCELLED,
    Contribution,
    LoadReply,
    LoadRequest,
    MergeRequest,
    SnapshotRequest,
    TrainReply,
    TrainRequest,
    WorkRequest,
)

QUEUE: Final = 64  # the engine has at most a handful of requests out
KeptAction = act.Load | act.Heal | act.Compare | act.FetchSnapshot | act.FetchAhead  # needs no weights in the trainer
TrainerAction = KeptAction | act.Train | act.Apply | act.Open | act.Audit | act.WriteSnapshot | act.Export
_Queued = tuple[TrainerAction, tuple[bytes, ...] | None]  # with the bodies to apply


class RestartableTrainer(Trainer, Protocol):
    """A trainer whose process can be started again after a failure."""

    async def restart(self) -> None:
        """Start a fresh process; weights must be loaded again."""
        ...


class TrainerContext(HealContext, Protocol):
    def feed(self, event: act.EngineEvent) -> None: ...

    async def offer_opening(self, action: act.Open, opening: bytes) -> None: ...

    def find_mergeable(self, epoch: int, height: int) -> Sequence[act.Held]: ...


class TrainerTasks:
    """Runs trainer requests in order; a failed trainer is restarted and its weights count as lost."""

    def __init__(
        self, trainer: RestartableTrainer, loader: Loader, replay: ReplayStore, context: TrainerContext, *,
        settings: ClientSettings, snapshots: Path, payloads: PayloadCache, data: DataAhead,
    ) -> None:  # fmt: skip
        self._told: set[str] = set()  # what the trainer does otherwise than config.json says
        self._trainer = trainer
        self._loader = loader
        self._replay = replay
        self._x = context
        self._settings = settings
        self._snapshots = snapshots
        self._payloads = payloads
        self._data = data
        self._heal = HealTasks(trainer, loader, replay, context, self._request_load, snapshots=snapshots)
        self.audits = AuditTasks(trainer, data, payloads, replay, context)
        self._ahead = ZERO32  # digest of the weights that were last fetched before their Warmup
        self._cancelled: set[tuple[int, int]] = set()
        self._deadlines: dict[tuple[int, int], float] = {}  # of the newest round (LS9)
        self.loss: float | None = None  # of the last samples
        self._training: tuple[int, int] | None = None
        self._waiting_for_data: tuple[tuple[int, int], trio.CancelScope] | None = None
        self.open_requests = 0  # requests queued or running
        self._idle = Signal()
        self._send, self._receive = trio.open_memory_channel[_Queued](QUEUE)

    def put(self, action: TrainerAction) -> None:
        """Queue a request; never blocks, because the engine has few requests open at a time.

        The payloads are looked up now: they may have expired by the time the request runs.
        """
        self.open_requests += 1
        bodies = self._payloads.find(action.blobs) if isinstance(action, act.Apply | act.Train) else None
        self._send.send_nowait((action, bodies))

    def _has_waiting(self) -> bool:
        """Whether another request waits; audits are asked for one at a time."""
        return self.open_requests > 1

    async def cancel(self, action: act.CancelTrain) -> None:
        key = (action.epoch, action.height)
        self._cancelled.add(key)
        if self._waiting_for_data is not None and self._waiting_for_data[0] == key:
            self._waiting_for_data[1].cancel()
        if self._training == key:
            await self._trainer.cancel()

    async def shorten(self, action: act.ShortenTrain) -> None:
        """Cut the round short (LS9): in the call that runs, or else in the next one."""
        key = (action.epoch, action.height)
        self._deadlines = {key: action.deadline}
        if self._training == key:
            await self._trainer.shorten(max(0.0, action.deadline - trio.current_time()))

    def _get_time_left(self, epoch: int, height: int, deadline: float = math.inf) -> float:
        known = self._deadlines.setdefault((epoch, height), deadline)
        return max(0.0, known - trio.current_time())

    async def wait_idle(self) -> None:
        while self.open_requests:
            await self._idle.wait()

    async def run(self) -> None:
        async for action, bodies in self._receive:
            try:
                await self._do(action, bodies)
            except TrainerFailure as error:
                await self.recover(error, action)
            except (PsycheError, OSError) as error:
                self._x.log(types.Error(message=str(error)))
                self._report(action, str(error), is_lost=False)
            finally:
                self._close(1)

    async def recover(self, error: TrainerFailure, action: TrainerAction | None = None) -> None:
        """The trainer failed, in this action or in what was asked of it beside them."""
        self._x.log(types.Error(message=str(error), trainer=str(error.kind)))
        stale = self._take_stale()
        self._report(action, str(error), is_lost=True)  # before the restart, which takes seconds
        for other in stale:
            self._report(other, "the trainer was lost before its turn came", is_lost=False)
        await self._restart()

    def _close(self, requests: int) -> None:
        self.open_requests -= requests
        self._idle.notify()

    def _take_stale(self) -> list[TrainerAction]:
        """Remove queued requests that depend on the lost weights; return those whose failure must be reported."""
        waiting: list[_Queued] = []
        with contextlib.suppress(trio.WouldBlock):
            while True:
                waiting.append(self._receive.receive_nowait())
        kept = [queued for queued in waiting if isinstance(queued[0], KeptAction)]
        for queued in kept:
            self._send.send_nowait(queued)
        self._close(len(waiting) - len(kept))
        return [action for action, _ in waiting if isinstance(action, act.Train | act.Audit | act.WriteSnapshot)]

    async def _do(self, action: TrainerAction, bodies: tuple[bytes, ...] | None) -> None:
        match action:
            case act.Load():
                await self._load(action)
            case act.Train():
                await self._train(action, bodies)
            case act.Apply():
                await self._apply(action, bodies)
            case act.Open():
                await self._x.offer_opening(action, await self.audits.open(action))
            case act.Audit():
                self._x.feed(await self.audits.do(action, is_in_the_way=self._has_waiting))
            case act.Heal() | act.Compare():
                self._x.feed(await self._heal.do(action))
            case act.WriteSnapshot():
                await self._write_snapshot(action)
            case act.Export():
                await self._write_export(action)
            case act.FetchSnapshot():
                await self._fetch_snapshot(action)
            case act.FetchAhead():
                await self._fetch_ahead(action)

    async def _restart(self) -> None:
        try:
            await self._trainer.restart()
        except TrainerError as error:
            self._x.log(types.Error(message=f"the trainer cannot be started again: {error}"))

    def _report(self, action: TrainerAction | None, reason: str, *, is_lost: bool) -> None:
        """Tell the engine that a request failed; `is_lost`: and that the weights are gone with the trainer."""
        match action:
            case act.Train():
                self._x.feed(act.TrainFailed(action.epoch, action.height, reason, trainer_lost=is_lost))
                return
            case act.Load():
                self._x.feed(act.LoadFailed(action.epoch, reason))
                return
            case act.Audit():
                self._x.feed(act.Audited(action, None, reason))
            case act.Heal() | act.Compare():
                self._x.feed(act.HealFailed(action.epoch, reason, weights_kept=False))
                return
            case _:
                pass
        # a set that was not applied leaves weights that no later set fits: they count as lost
        if is_lost or isinstance(action, act.Apply):
            self._x.feed(act.TrainerLost(reason))
        match action:
            case act.FetchSnapshot():
                self._x.feed(act.SnapshotFetched(action.digest, ok=False))
            case act.WriteSnapshot() if not is_lost:
                self._x.feed(act.SnapshotWritten(action.epoch, action.height, action.digest, None, action))
            case act.FetchAhead() if not is_lost:
                self._x.feed(act.FetchedAhead(action.digest, ok=False))
            case _:
                pass

    # --- loading ---------------------------------------------------------------------------------

    async def _load(self, action: act.Load) -> None:
        reasons = Reasons()
        found = await self._load_from_any(await self._find_sources(action), action, reasons)
        loaded = found or await self._load_from_peers(action, reasons)
        if loaded is None:
            self._x.feed(act.LoadFailed(action.epoch, "; ".join(reasons) or "no source", reasons.for_good))
            return
        self._x.feed(loaded)
        if found is not None:  # what peers gave is an own snapshot already
            await self._keep_source(action.epoch, loaded.digest, loaded.reply.chain)
        await self._loader.remove_leftovers()

    async def _load_from_any(self, sources: list[Source], action: act.Load, reasons: Reasons) -> act.Loaded | None:
        for source in sources:
            loaded = await self._try_source(source, action, reasons)
            if loaded is not None:
                return loaded
        return None

    async def _load_from_peers(self, action: act.Load, reasons: Reasons) -> act.Loaded | None:
        state = self._x.state
        if action.certified is None and not list_places(state, None):
            if not reasons:
                reasons.append(
                    f"the run's model folder {state.model.checkpoint.name!r} is not below --local-root, and the record "
                    "does not say yet which weights are the first: this client fetches them once a quorum of the "
                    "members shows the same ones; or copy the folder from whoever made it"
                )
            return None
        deadline = trio.current_time() + max(5, state.config.warmup_time)
        try:
            source = await self._loader.fetch(state, action.certified, deadline, self._log_progress)
        except NetworkError as error:
            reasons.append(str(error))
            return None
        return await self._try_source(source, action, reasons)

    async def _keep_source(self, epoch: int, digest: bytes, chain: bytes) -> None:
        """Keep weights loaded from elsewhere as an own snapshot, to serve peers that lack the source (S9, P6)."""
        if await self._loader.find_local(digest) is None:
            progress = self._x.state.progress
            index = progress.epoch_start_data_index
            await self._write_snapshot(act.WriteSnapshot(epoch, -1, progress.step, index, chain, digest, ZERO32))

    async def _find_sources(self, action: act.Load) -> list[Source]:
        own = await self._find_own(action.certified) if action.certified is not None else None
        configured = self._loader.find_configured(self._x.state, action.certified, action.source_digest)
        return [s for s in (own, configured) if s is not None]

    async def _find_own(self, certified: bytes) -> Source | None:
        state = self._x.state
        if state.model.optimizer.is_exact:
            own = await self._loader.find_local(certified)
            return replace(own, name=WeightSource.PEERS) if own is not None and certified == self._ahead else own
        deadline = trio.current_time() + max(5, state.config.warmup_time)
        return await self._loader.find_leading(state, certified, deadline)

    def _log_progress(self, done: int, total: int) -> None:
        self._x.log(types.ModelFetch(bytes=done, total=total))

    async def _try_source(self, source: Source, action: act.Load, reasons: Reasons) -> act.Loaded | None:
        try:
            reply = await self._request_load(source, keep_momentum=action.keep_momentum)
        except TrainerFailure:
            raise
        except TrainerError as error:
            is_exact = self._x.state.model.optimizer.is_exact
            await reasons.note(source, error, action.certified, is_exact=is_exact)
            return None
        for change in set(reply.notices) - self._told:
            self._told.add(change)
            self._x.log(types.ModelAdapted(change=change))
        digest = compute_state_digest(reply.chain, reply.weight_root)
        if action.certified in (None, digest):
            return act.Loaded(action.epoch, digest, source.name, reply)
        asked, given = action.certified.hex()[:16], digest.hex()[:16]
        reasons.append(f"{source.name}: gives {given}, the record asks for {asked}")
        return None

    async def _request_load(self, source: Source, *, keep_momentum: bool) -> LoadReply:
        settings = self._settings
        reply = await self._trainer.load(
            LoadRequest(
                path=str(source.path),
                is_snapshot=source.is_snapshot,
                model=self._x.state.model,
                micro_batch_size=settings.micro_batch_size,
                **settings.devices,
                keep_momentum=keep_momentum,
                activation_checkpointing=settings.activation_checkpointing,
                offload=settings.offload,
                batch_size=0 if settings.is_memory_checked else self._x.state.config.global_batch_size_end,
                verifies=self._x.state.config.verification_percent > 0,
                scores=settings.has_evals,
            )
        )
        settings.is_memory_checked = settings.micro_batch_size > 0
        return reply

    async def _fetch_snapshot(self, action: act.FetchSnapshot) -> None:
        reasons = Reasons()
        load = act.Load(self._x.state.progress.epoch, action.digest, ZERO32, keep_momentum=False)
        own = await self._loader.find_local(action.digest)
        found = await self._load_from_any([] if own is None else [own], load, reasons)
        if found is None and await self._load_from_peers(load, reasons) is None:
            raise TrainerError("; ".join(reasons))
        self._x.feed(act.SnapshotFetched(action.digest, ok=True))

    async def _fetch_ahead(self, action: act.FetchAhead) -> None:
        """Fetch weights to the disk in the turn of a load, so that the load of their Warmup waits and finds them."""
        state, digest = self._x.state, action.digest
        is_here = self._loader.find_configured(state, digest, state.checkpoint.digest) is not None
        if not is_here and await self._loader.find_local(digest) is None:
            self._ahead = digest
            deadline = trio.current_time() + state.config.cooldown_time + state.config.warmup_time
            try:
                await self._loader.fetch(state, digest, deadline, self._log_progress)
            except NetworkError:  # the load in Warmup says why, if that is still so
                self._x.feed(act.FetchedAhead(digest, ok=False))
                return
        self._x.feed(act.FetchedAhead(digest, ok=True))

    # --- training and applying -------------------------------------------------------------------

    async def _train(self, action: act.Train, bodies: tuple[bytes, ...] | None) -> None:
        if bodies is None:
            raise TrainerError(f"training of round {action.height}: the own payload in flight is no longer here")
        key = (action.epoch, action.height)
        tokens, work, run_tokens = b"", None, self._count_run_tokens(action.height)
        with trio.move_on_after(math.inf) as scope:  # A4: waiting for data delays the next apply
            self._waiting_for_data = (key, scope)
            if key in self._cancelled:
                scope.cancel()
            try:
                tokens = await self._data.take(action.epoch, action.height, action.start, action.end)
                work = await self.audits.make_work(action)
            except (DataError, NetworkError) as error:
                for_good = isinstance(error, UnusableDataError)
                self._x.feed(act.TrainFailed(action.epoch, action.height, f"data: {error}", False, for_good))
                return
            finally:
                self._waiting_for_data = None
        if key in self._cancelled:
            self._x.feed(act.Trained(action.epoch, action.height, CANCELLED, ZERO32))
            return
        self._training = key
        try:
            reply, merged = await self._train_whole(self._make_request(action, tokens, bodies, work))
        finally:
            self._training = None
            self._cancelled = {k for k in self._cancelled if k > key}
        data_hash = compute_data_hash(tokens, has_labels=self._has_labels)
        if not reply.cancelled:
            self.loss = reply.loss
            self._x.log(
                types.Trained(
                    epoch=action.epoch, height=action.height, step=action.step, loss=reply.loss, tokens=reply.tokens,
                    seconds=reply.seconds, compute_seconds=reply.compute_seconds,
                    micro_batch_size=reply.micro_batch_size, grad_norm=reply.grad_norm, data_hash=data_hash,
                    learning_rate=action.lr, run_tokens=run_tokens,
                )
            )  # fmt: skip
        for one in reply.statistics:
            place = {"epoch": action.epoch, "height": action.height, "step": action.step}
            self._x.log(types.TensorMeasured(**place, **msgspec.structs.asdict(one)))
        self._x.feed(act.Trained(action.epoch, action.height, reply, data_hash, merged))

    async def _train_whole(self, request: TrainRequest) -> tuple[TrainReply, int]:
        """Train a batch, with local steps in two calls; also the bitmap of the members that were merged (LS7)."""
        reply = await self._trainer.train(request)
        if not reply.waits_for_merge:
            return reply, 0
        if (request.epoch, request.height) in self._cancelled:  # the trainer gives the round up at its next call
            return CANCELLED, 0
        here: dict[int, Contribution] = {}
        for one in self._x.find_mergeable(request.epoch, request.height):
            if bodies := self._payloads.find((one.blob,)):
                here[one.member] = Contribution(payload=bodies[0], inner_steps=one.inner_steps)
        merge = MergeRequest(
            held=tuple(here.values()), within_s=self._get_time_left(request.epoch, request.height)
        )  # fmt: skip
        return await self._trainer.merge(merge), compute_bits(here)

    def _count_run_tokens(self, height: int) -> int:
        round_ = get_round(self._x.state, height)
        return 0 if round_ is None else get_next_data_index(round_) * self._x.state.model.max_seq_len

    def _make_request(
        self, action: act.Train, tokens: bytes, bodies: tuple[bytes, ...], work: WorkRequest | None
    ) -> TrainRequest:
        return TrainRequest(
            epoch=action.epoch,
            height=action.height,
            step=action.step,
            lr=action.lr,
            lookahead_lr=action.lookahead_lr,
            tokens=tokens,
            samples=action.end - action.start + 1,
            sequence_length=self._x.state.model.max_seq_len,
            decided=action.decided,
            in_flight=action.in_flight,
            has_labels=self._has_labels,
            next_lr=action.next_lr,
            own=tuple(
                Contribution(payload=body, inner_steps=steps)
                for body, steps in zip(bodies, action.inner_steps, strict=True)
            ),
            within_s=self._get_time_left(action.epoch, action.height, action.deadline),
            work=work,
            with_statistics=bool(every := self._settings.optim_stats_steps) and action.step % every == 0,
        )

    @property
    def _has_labels(self) -> bool:
        return self._x.state.model.data_type is DataType.FINETUNING

    async def _apply(self, action: act.Apply, bodies: tuple[bytes, ...] | None) -> None:
        if bodies is None:
            raise TrainerError(f"apply at height {action.height}: a decided payload is no longer here")
        reply = await self._trainer.apply(make_apply_request(action, bodies))
        self._x.feed(act.Applied(action.epoch, action.height, reply))

    # --- writing ---------------------------------------------------------------------------------

    async def _write_snapshot(self, action: act.WriteSnapshot) -> None:
        path = self._snapshots / get_snapshot_folder(action.epoch, action.step, action.digest)
        reply = await self._trainer.snapshot(
            SnapshotRequest(
                kind="resume",
                path=str(path),
                epoch=action.epoch,
                step=action.step,
                data_index=action.data_index,
                chain=action.chain,
                digest=action.digest,
                prev_commitment=action.prev_commitment,
                decided=action.decided,
            )
        )
        if compute_state_digest(action.chain, reply.weight_root) != action.digest:
            await trio.to_thread.run_sync(shutil.rmtree, path)
            raise TrainerError(f"snapshot {path}: the weights in the trainer have changed since their digest was taken")
        self._x.log(types.SnapshotWritten(path=str(path), bytes=reply.size_bytes, digest=action.digest))
        self._x.feed(act.SnapshotWritten(action.epoch, action.height, action.digest, reply))

    async def _write_export(self, action: act.Export) -> None:
        """A Hugging Face folder of the certified weights; older ones beyond `keep_steps` go.

        One of the same weights is left alone: an earlier process wrote it, and its user may have added to it since.
        """
        settings, state = self._settings, self._x.state
        path = get_export_path(settings, action.step)
        if size := await trio.to_thread.run_sync(measure_export, path, action.digest, settings.export_dtype):
            self._x.log(types.Exported(path=str(path), bytes=size, step=action.step))
            return
        reply = await self._trainer.snapshot(
            SnapshotRequest(
                kind="export",
                path=str(path),
                epoch=action.epoch,
                step=action.step,
                data_index=action.data_index,
                chain=ZERO32,
                digest=action.digest,
                dtype=settings.export_dtype,
                card=build_run_card(state, action, settings.export_dtype, self.loss),
            )
        )
        self._x.log(types.Exported(path=str(path), bytes=reply.size_bytes, step=action.step))
        if settings.delete_old_steps:
            await trio.to_thread.run_sync(remove_old_exports, path.parent, state.run_id, settings.keep_steps)
