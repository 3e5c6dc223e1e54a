"""The process that uploads a folder to the Hub: huggingface_hub blocks, and its threads outlast a cancelled call.

Reads an `Order` as a line of JSON from stdin, and ends at once when stdin ends, since then its parent is gone. Writes
`Report`s as such lines to stdout: how much is sent, and last what became of it. Endpoint and token come in the
environment, where huggingface_hub looks for them as it is imported.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TRIES: Final = 5
_CHANGED: Final = 412  # somebody else has committed since
_FINAL: Final = (400, 401, 403, 404)
_LARGE: Final = (".safetensors", ".parquet")
_OLD: Final = {"model": (".safetensors", ".safetensors.index.json"), "dataset": (".parquet",)}
_SILENCE_S: Final = 120.0  # without an answer; by itself huggingface_hub waits for ever
_TOLD_EVERY_S: Final = 0.2


class Order(msgspec.Struct):
    folder: str
    repo_id: str
    branch: str
    message: str
    kind: str = "model"
    is_private: bool = False


class PublicRepository(Exception):
    """A model that is to be private would go where everybody can read it."""


class Report(msgspec.Struct, omit_defaults=True):
    sent_bytes: int = 0  # of the weights or rows, so far
    commit: str = ""
    error: str = ""
    is_final: bool = False


def push(api: "HfApi", order: Order) -> str:
    """Make the files of a folder the newest commit of a branch; return it. Weights, or rows, of other names go."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError

    kind = order.kind
    api.create_repo(order.repo_id, exist_ok=True, repo_type=kind, private=order.is_private or None)
    if order.branch != "main":
        api.create_branch(order.repo_id, branch=order.branch, exist_ok=True, repo_type=kind)
    paths = {path.name: path for path in sorted(Path(order.folder).iterdir()) if path.is_file()}
    for number in range(_TRIES):
        ask = api.dataset_info if kind == "dataset" else api.model_info
        head = ask(order.repo_id, revision=order.branch)
        if order.is_private and kind == "model" and not head.private:  # rows are private only where a set is made
            raise PublicRepository("it is there already, and public; make it private there, or name another")
        old = [one.rfilename for one in head.siblings or () if one.rfilename.endswith(_OLD[kind])]
        added = [CommitOperationAdd(name, path) for name, path in paths.items()]
        deleted = [CommitOperationDelete(name) for name in old if "/" not in name and name not in paths]
        _send_large(api, order, added)
        try:
            return api.create_commit(
                order.repo_id, [*deleted, *added], commit_message=order.message, revision=order.branch,
                parent_commit=head.sha, repo_type=kind,
            ).oid  # fmt: skip
        except HfHubHTTPError as error:
            if error.response.status_code != _CHANGED or number == _TRIES - 1:
                raise
    raise AssertionError


def _send_large(api: "HfApi", order: Order, added: list[Any]) -> None:
    """Send the large files, which a commit refers to, one by one; tell how far that is."""
    bars = _Bars()
    for one in added:
        if one.path_in_repo.endswith(_LARGE):
            api.preupload_lfs_files(
                order.repo_id, [one], revision=order.branch, free_memory=False, repo_type=order.kind
            )
            bars.before_bytes += Path(one.path_or_fileobj).stat().st_size
            _write(Report(bars.before_bytes))


class _Bars:
    """Tells what the library's own progress bars show of a file, which are drawn nowhere."""

    def __init__(self) -> None:
        from huggingface_hub.utils import tqdm

        self.before_bytes = 0
        self._told_s = 0.0
        update: Callable[..., Any] = tqdm.update

        def tell(bar: Any, n: float | None = 1) -> Any:
            result = update(bar, n)
            if bar.unit == "B" and time.monotonic() - self._told_s > _TOLD_EVERY_S:
                self._told_s = time.monotonic()
                _write(Report(self.before_bytes + int(bar.n)))
            return result

        tqdm.update = tell  # type: ignore[method-assign]


def _write(report: Report) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from huggingface_hub import HfApi, set_client_factory
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils._http import default_client_factory

    def make_client() -> Any:
        client = default_client_factory()
        client.timeout = _SILENCE_S
        return client

    set_client_factory(make_client)
    try:
        report = Report(commit=push(HfApi(), order))
    except HfHubHTTPError as error:  # its text may have a signed address
        status = error.response.status_code
        report = Report(error=f"HTTP {status}", is_final=status in _FINAL)
    except PublicRepository as error:
        report = Report(error=str(error), is_final=True)
    except Exception as error:  # noqa: BLE001 - whatever fails in there; the text as above
        report = Report(error=type(error).__name__)
    _write(report)


if __name__ == "__main__":
    main()
