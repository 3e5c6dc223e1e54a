"""Uploads of the certified weights to the Hub or a Google bucket, to be named on record (S10)."""

import re
import shutil
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import trio

from psyche.client.engine.actions import Export
from psyche.client.runtime.settings import ClientSettings
from psyche.client.runtime.weights.exporting import build_run_card
from psyche.client.runtime.weights.loading import Log
from psyche.core.committee.elections import compute_uploads, order_uploaders
from psyche.core.state.limits import MAX_COOLDOWN_SOURCES, STRING_BYTES
from psyche.core.state.state import Checkpoint, CheckpointKind, ClientState, Coordinator
from psyche.errors import ConfigError, NetworkError, StorageError, StorageRefused
from psyche.modeling.snapshot import SnapshotInfo, get_tensor_bytes
from psyche.modeling.trainer.process import TrainerProcess
from psyche.modeling.user_files import CARD_NAME
from psyche.modeling.weight_files import write_snapshot_folder
from psyche.storage.bucket_writer import BucketWriter
from psyche.storage.hub import check_repo_id, push_to_hub
from psyche.telemetry import types
from psyche.telemetry.text import format_bytes
from psyche.wire.nursery import open_plain_nursery
from psyche.wire.ports import Network, SyncRequest
from psyche.wire.trainer import SnapshotRequest

LOOKED_EVERY_S: Final = 1.0
LEAST_EXPECTED_S: Final = 30.0
ASKED_S: Final = 5.0
STOP_S: Final = 10.0
FIRST_PACE: Final = 4 << 20  # bytes a second, before the first upload
_SET: Final = re.compile(r"step-\d{10}-[0-9a-f]{8}/")
PATIENCE: Final = 20  # times what an upload is expected to take: then it has failed


def check_upload(settings: ClientSettings) -> None:
    """Check what is known of an upload before anything is started.

    Raises:
        ConfigError: it cannot come to anything.
    """
    places = {
        "--hub-repo": settings.hub_repo, "--gcs-bucket": settings.gcs_bucket,
        "--share-checkpoints": settings.share_checkpoints,
    }  # fmt: skip
    given = [name for name, place in places.items() if place]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)}: a client names one place; use one of them")
    if settings.gcs_bucket:
        _check_bucket(settings)
    if not settings.hub_repo:
        return
    try:
        check_repo_id(settings.hub_repo)
    except StorageRefused as error:
        raise ConfigError(f"--hub-repo {error}") from error
    if len(settings.hub_repo.encode()) > STRING_BYTES:
        raise ConfigError(
            f"--hub-repo {settings.hub_repo}: has more than {STRING_BYTES} bytes, so no record can hold it"
        )
    if not settings.storage.hub_token and not settings.skip_checkpoint_upload:
        raise ConfigError("--hub-repo: needs a token that may write there: set HF_TOKEN, or `hf auth login`")


def _check_bucket(settings: ClientSettings) -> None:
    folder = get_set_folder(settings, 0xFFFFFFFF, bytes(32))
    try:
        BucketWriter(settings.gcs_bucket, folder, settings.storage)
    except StorageRefused as error:
        raise ConfigError(f"--gcs-bucket {error}") from error
    if len(folder.encode()) > STRING_BYTES or len(settings.gcs_bucket.encode()) > STRING_BYTES:
        raise ConfigError(f"--gcs-bucket gs://{settings.gcs_bucket}/{folder}: more than {STRING_BYTES} bytes")
    if settings.upload_dtype != "float32":
        raise ConfigError("--upload-dtype: a bucket has no branches; upload float32")


def get_set_folder(settings: ClientSettings, step: int, digest: bytes) -> str:
    """The folder of one set of weights in the bucket."""
    return f"{settings.gcs_prefix.strip('/') or settings.run_id}/step-{step:010d}-{digest.hex()[:8]}"


def is_uploading(settings: ClientSettings) -> bool:
    return bool(settings.hub_repo or settings.gcs_bucket) and not settings.skip_checkpoint_upload


def count_places(state: Coordinator, digest: bytes) -> int:
    """How many places on record have these weights."""
    if state.checkpoint.digest != digest:
        return 0
    return 1 + sum(one.kind is not CheckpointKind.EPHEMERAL for one in state.model.extra_checkpoints)


class Uploader:
    """Uploads snapshots, each until it is there or nobody needs it any more."""

    def __init__(
        self, settings: ClientSettings, network: Network, get_state: Callable[[], Coordinator], log: Log
    ) -> None:
        self._settings = settings
        self._network = network
        self._get_state = get_state
        self._log = log
        self._root = settings.data_dir / "uploads"
        self._pace = float(FIRST_PACE)
        self._sent_bytes = 0  # of the upload that is under way

    def is_needed(self, digest: bytes, wanted: int) -> bool:
        """Whether these weights are the certified ones, and lack places on record, of which there can be four."""
        state = self._get_state()
        wanted = min(max(wanted, state.model.cooldown_sources), MAX_COOLDOWN_SOURCES)
        return state.certified.digest == digest and count_places(state, digest) < wanted

    async def upload(self, info: SnapshotInfo, loss: float | None) -> Checkpoint | None:
        """Upload a snapshot in float32, again and again until it is there; None: it is not needed any more.

        Raises:
            StorageRefused: it would not help to try again.
            OSError: the disk does not take what is to be uploaded.
        """
        found: list[Checkpoint] = []
        order = order_uploaders(await self._find_able(), info.digest)

        async def work() -> None:
            await trio.sleep(order.index(self._network.key) * self._expect(info))
            found.append(await self._upload_patiently(info, loss))
            done.set()

        done = trio.Event()
        async with open_plain_nursery() as nursery:
            nursery.start_soon(work)
            while not found and self.is_needed(info.digest, compute_uploads(len(order))):
                with trio.move_on_after(LOOKED_EVERY_S):
                    await done.wait()
            nursery.cancel_scope.cancel()
        return found[0] if found else None

    async def upload_for_people(self, info: SnapshotInfo, loss: float | None) -> None:
        """Upload it once more where the user wants another type too, as a branch of that name."""
        dtype = self._settings.upload_dtype
        if dtype != "float32":
            await self._push(info, loss, dtype, branch=dtype)
        if self._settings.gcs_bucket and self._settings.delete_old_steps:
            await self._delete_old()
        await trio.to_thread.run_sync(shutil.rmtree, self._root, True)

    async def _find_able(self) -> list[bytes]:
        """The keys of the members that upload, as far as they are connected and say so; this client is one."""
        able = [self._network.key]

        async def ask(peer: bytes) -> None:
            with suppress(NetworkError):
                if (await self._network.ask(peer, SyncRequest("upload"), timeout_s=ASKED_S)).found:
                    able.append(peer)

        members = {one.p2p for one in self._get_state().clients if one.state is not ClientState.EJECTED}
        async with open_plain_nursery() as nursery:
            for peer in self._network.connected() & members:
                nursery.start_soon(ask, peer)
        return able

    def _expect(self, info: SnapshotInfo) -> float:
        """The seconds that an upload is expected to take."""
        return LEAST_EXPECTED_S + sum(map(get_tensor_bytes, info.entries)) / self._pace

    async def _upload_patiently(self, info: SnapshotInfo, loss: float | None) -> Checkpoint:
        size_bytes = sum(map(get_tensor_bytes, info.entries))
        while True:
            expected_s = self._expect(info)
            began = trio.current_time()
            try:
                with trio.move_on_after(PATIENCE * expected_s):
                    async with open_plain_nursery() as nursery:
                        nursery.start_soon(self._tell_if_late, expected_s, size_bytes)
                        place = await self._upload_once(info, loss)
                        nursery.cancel_scope.cancel()
                    self._pace = size_bytes / max(trio.current_time() - began, 1.0)
                    return place
                self._log(types.Error(message=f"upload: not done within {PATIENCE * expected_s:.0f} s"))
            except StorageRefused:
                raise
            except StorageError as error:
                self._log(types.Error(message=str(error)))
            await trio.sleep(expected_s)

    async def _tell_if_late(self, expected_s: float, size_bytes: int) -> None:
        self._sent_bytes = 0
        await trio.sleep(expected_s)
        sent = f"{format_bytes(self._sent_bytes)} of {format_bytes(size_bytes)} are sent"
        late = f"upload: is not there after the expected {expected_s:.0f} s, {sent}"
        self._log(types.Error(message=f"{late}; it goes on, and the next member begins"))

    def _set_sent(self, sent_bytes: int) -> None:
        self._sent_bytes = sent_bytes

    async def _upload_once(self, info: SnapshotInfo, loss: float | None) -> Checkpoint:
        if self._settings.gcs_bucket:
            return await self._fill(info, loss)
        commit = await self._push(info, loss, "float32", branch="main")
        return Checkpoint(CheckpointKind.HUB, self._settings.hub_repo, commit)

    async def _push(self, info: SnapshotInfo, loss: float | None, dtype: str, *, branch: str) -> str:
        folder = await self._write(info, loss, dtype)
        message = f"{self._settings.run_id}, step {info.step - 1}"
        return await push_to_hub(
            folder, self._settings.hub_repo, self._settings.storage, message=message, branch=branch,
            progress=self._set_sent,
        )  # fmt: skip

    async def _fill(self, info: SnapshotInfo, loss: float | None) -> Checkpoint:
        """Put a set of weights into a folder of its own in the bucket; its list comes last, once and for all."""
        folder = await self._write(info, loss, "float32")
        settings = self._settings
        prefix = get_set_folder(settings, info.step, info.digest)
        about = {"epoch": info.epoch, "step": info.step, "run_id": settings.run_id, "digest": info.digest.hex()}
        async with aclosing(BucketWriter(settings.gcs_bucket, prefix, settings.storage)) as writer:
            await writer.put_files(sorted(folder.iterdir()), about, own=[CARD_NAME], progress=self._set_sent)
        return Checkpoint(CheckpointKind.GCS, settings.gcs_bucket, prefix)

    async def _delete_old(self) -> None:
        """Delete the sets beyond `keep_steps` that this run has in the bucket, but for those on record."""
        settings, model = self._settings, self._get_state().model
        root = get_set_folder(settings, 0, b"").rpartition("/")[0]
        on_record = {one.revision for one in (model.checkpoint, *model.extra_checkpoints)}
        async with aclosing(BucketWriter(settings.gcs_bucket, root, settings.storage)) as writer:
            files = await writer.list_files()
            sets = sorted({file.name.partition("/")[0] for file in files if _SET.match(file.name)})
            old = {name for name in sets[: -settings.keep_steps] if f"{root}/{name}" not in on_record}
            for file in files:
                if file.name.partition("/")[0] in old:
                    await writer.remove(file)

    async def _write(self, info: SnapshotInfo, loss: float | None, dtype: str) -> Path:
        """Write what is to be uploaded, or find it; what was left of other weights goes."""
        path = self._root / f"{info.digest.hex()[:16]}-{dtype}"
        if path.exists():
            return path
        await trio.to_thread.run_sync(shutil.rmtree, self._root, True)
        parameters = sum(map(get_tensor_bytes, info.entries)) // 4
        action = Export(info.epoch, info.step, info.data_index, info.digest, parameters)
        card = build_run_card(self._get_state(), action, dtype, loss)
        if dtype == "float32":
            await trio.to_thread.run_sync(write_snapshot_folder, path, info, card)
        else:
            await self._export(info, path, dtype, card)
        return path

    async def _export(self, info: SnapshotInfo, path: Path, dtype: str, card: str) -> None:
        """Have a trainer of its own write what is for people: only transformers knows the names in their files."""
        trainer = TrainerProcess(log_path=self._settings.data_dir / "export.log")
        request = SnapshotRequest(
            kind="export", path=str(path), epoch=info.epoch, step=info.step, data_index=info.data_index,
            chain=info.chain, digest=info.digest, dtype=dtype, card=card, source=str(info.path),
            max_seq_len=self._get_state().model.max_seq_len,
        )  # fmt: skip
        try:
            await trainer.snapshot(request)
        finally:
            with trio.move_on_after(STOP_S) as scope:
                scope.shield = True
                await trainer.stop()
