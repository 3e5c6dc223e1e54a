"""The trainer's part of healing: replay the epoch's sets, or assemble the agreed weights with peers' tensors (S7)."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import trio

from psyche.client.engine.actions import Compare, Heal, Healed, HealFailed
from psyche.client.runtime.weights.loading import HEAL_FOLDER, Loader, Source, remove_folder
from psyche.client.runtime.weights.replay import ReplayStore, make_apply_request
from psyche.client.runtime.weights.serving import Offer
from psyche.core.encoding.manifest import decode_manifest
from psyche.core.state.state import ZERO32, Coordinator
from psyche.errors import NetworkError, PsycheError, TrainerError
from psyche.modeling.snapshot import read_snapshot_info
from psyche.modeling.trainer.failure import TrainerFailure
from psyche.telemetry import types
from psyche.wire.crypto import compute_chain_digest, compute_state_digest
from psyche.wire.ports import Trainer
from psyche.wire.trainer import LoadReply, SnapshotRequest

ASK_AGAIN_S: Final = 1.0
REMOVE_S: Final = 5.0
LoadSource = Callable[..., Awaitable[LoadReply]]  # (source, *, keep_momentum)


class HealContext(Protocol):
    @property
    def state(self) -> Coordinator: ...

    def log(self, event: types.Event) -> None: ...

    async def wait_for_replay(self) -> None: ...


class SetsDiffer(TrainerError):
    """The agreed weights result from other sets than those this client read from the record."""


class HealTasks:
    """Runs `Heal` and `Compare`; both return an event with the outcome."""

    def __init__(
        self, trainer: Trainer, loader: Loader, replay: ReplayStore, context: HealContext, load: LoadSource, *,
        snapshots: Path,
    ) -> None:  # fmt: skip
        self._trainer = trainer
        self._loader = loader
        self._replay = replay
        self._x = context
        self._load = load
        self._folder = snapshots / HEAL_FOLDER  # beside the snapshots, but not one of them
        self._weights_kept = True

    async def do(self, action: Heal | Compare) -> Healed | HealFailed:
        """Raises TrainerFailure if the trainer is lost; any other failure becomes `HealFailed`."""
        self._weights_kept = True
        try:
            return await (self._replay_sets(action) if isinstance(action, Heal) else self._compare(action))
        except TrainerFailure:
            raise
        except (PsycheError, OSError) as error:
            self._x.log(types.Error(message=str(error)))
            return HealFailed(action.epoch, str(error), self._weights_kept, contradicts=isinstance(error, SetsDiffer))

    async def _load_checked(self, source: Source, digest: bytes) -> None:
        self._weights_kept = False
        reply = await self._load(source, keep_momentum=True)
        if compute_state_digest(reply.chain, reply.weight_root) != digest:
            raise TrainerError(f"{source.name} does not give the weights {digest.hex()[:16]}")

    # --- (1) replay -------------------------------------------------------------------------------

    async def _replay_sets(self, action: Heal) -> Healed:
        await self._x.wait_for_replay()
        for height in range(action.height + 1):  # check first: loading replaces weights that may still be of use
            if not await trio.to_thread.run_sync(self._replay.has, action.epoch, height):
                raise TrainerError(f"the replay store lacks the set of round {height}")
        await self._load_certified(action.certified)
        chain, digests, full = action.certified, dict[int, bytes](), dict[int, bool]()
        for height in range(action.height + 1):
            stored = await trio.to_thread.run_sync(self._replay.read, action.epoch, height)
            if stored is None:
                raise TrainerError(f"the replay store lacks the set of round {height}")
            done, bodies = stored
            reply = await self._trainer.apply(make_apply_request(done, bodies))
            chain = compute_chain_digest(chain, done.epoch, height, done.step, done.lr_bits, done.applied)
            digests[height] = compute_state_digest(chain, reply.weight_part)
            full[height] = reply.is_full
        return Healed(action.epoch, action.height, chain, digests, full)

    async def _load_certified(self, certified: bytes) -> None:
        state = self._x.state
        own = await self._loader.find_local(certified)
        configured = self._loader.find_configured(state, certified, state.checkpoint.digest)
        for source in (own, configured):
            try:
                if source is not None:
                    return await self._load_checked(source, certified)
            except TrainerFailure:
                raise
            except TrainerError as error:  # the disk may be damaged; peers may still have the weights
                self._x.log(types.Error(message=str(error)))
        deadline = trio.current_time() + max(5, state.config.warmup_time)
        fetched = await self._loader.fetch(state, certified, deadline)
        return await self._load_checked(fetched, certified)

    # --- (2) comparison ---------------------------------------------------------------------------

    async def _compare(self, action: Compare) -> Healed:
        await trio.to_thread.run_sync(remove_folder, self._folder)
        try:
            own = await self._write_own(action) if action.own != ZERO32 else {}
            offer = await self._find_offer(action)
            if action.chain not in (ZERO32, offer.chain):
                raise SetsDiffer(f"the agreed digest of round {action.height} belongs to other sets than this client's")
            blobs = {entry.blob_id for entry in decode_manifest(offer.manifest).tensors}
            differing = len(blobs - own.keys())
            self._x.log(types.Compared(height=action.height, tensors=len(blobs), differing=differing))
            source = await self._loader.assemble(
                self._x.state, offer, action.agreed, action.deadline, self._folder / "agreed",
                own=own, sources=action.helpers,
            )  # fmt: skip
            await self._load_checked(source, action.agreed)
        finally:
            with trio.move_on_after(REMOVE_S) as scope:
                scope.shield = True
                await trio.to_thread.run_sync(remove_folder, self._folder)
        return Healed(action.epoch, action.height, offer.chain, {action.height: action.agreed}, {action.height: True})

    async def _write_own(self, action: Compare) -> Mapping[bytes, Path]:
        path = self._folder / "own"
        request = SnapshotRequest(
            kind="resume", path=str(path), epoch=action.epoch, step=0, data_index=0, chain=action.chain,
            digest=action.own,
        )  # fmt: skip
        await self._trainer.snapshot(request)
        info = await trio.to_thread.run_sync(read_snapshot_info, path)
        return {blob.blob_id: blob.path for blob in info.blobs}

    async def _find_offer(self, action: Compare) -> Offer:
        """Ask the helpers for a manifest that gives the agreed digest; repeat, since they may still be writing it."""
        reason = "nobody promised them"
        while True:
            for helper in action.helpers:
                try:
                    return await self._loader.ask_offer(self._x.state, action.agreed, helper)
                except NetworkError as error:
                    reason = str(error)
            state = self._x.state
            over = trio.current_time() >= action.deadline
            if over or not state.in_round or state.progress.epoch != action.epoch:
                raise NetworkError(f"no peer showed the agreed weights of round {action.height}: {reason}")
            await trio.sleep(ASK_AGAIN_S)
