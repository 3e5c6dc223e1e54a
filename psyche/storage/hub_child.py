"""The process that uploads a folder to the Hub: huggingface_hub blocks, and its threads outlast a cancelled call.

Reads an `Order` as JSON from stdin, writes a `Report` to stdout. Endpoint and token come in the environment, where
huggingface_hub looks for them as it is imported.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_TRIES: Final = 5
_CHANGED: Final = 412  # somebody else has committed since
_FINAL: Final = (400, 401, 403, 404)
_WEIGHTS: Final = (".safetensors", ".safetensors.index.json")


class Order(msgspec.Struct):
    folder: str
    repo_id: str
    branch: str
    message: str


class Report(msgspec.Struct):
    commit: str = ""
    error: str = ""
    is_final: bool = False


def push(api: "HfApi", order: Order) -> str:
    """Make the files of a folder the newest commit of a branch; return it. Weights of other names go."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import HfHubHTTPError

    api.create_repo(order.repo_id, exist_ok=True)
    if order.branch != "main":
        api.create_branch(order.repo_id, branch=order.branch, exist_ok=True)
    paths = {path.name: path for path in sorted(Path(order.folder).iterdir()) if path.is_file()}
    for number in range(_TRIES):
        head = api.model_info(order.repo_id, revision=order.branch)
        old = [one.rfilename for one in head.siblings or () if one.rfilename.endswith(_WEIGHTS)]
        changes = [CommitOperationDelete(name) for name in old if "/" not in name and name not in paths]
        changes += [CommitOperationAdd(name, path) for name, path in paths.items()]
        try:
            return api.create_commit(
                order.repo_id, changes, commit_message=order.message, revision=order.branch, parent_commit=head.sha
            ).oid
        except HfHubHTTPError as error:
            if error.response.status_code != _CHANGED or number == _TRIES - 1:
                raise
    raise AssertionError


def main() -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        report = Report(push(HfApi(), msgspec.json.decode(sys.stdin.buffer.read(), type=Order)))
    except HfHubHTTPError as error:  # its text may have a signed address
        status = error.response.status_code
        report = Report(error=f"HTTP {status}", is_final=status in _FINAL)
    except Exception as error:  # noqa: BLE001 - whatever fails in there; the text as above
        report = Report(error=type(error).__name__)
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
