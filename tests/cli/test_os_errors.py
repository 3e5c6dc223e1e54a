"""What the operating system refuses is one sentence that names the path: in every command, for every path it takes."""

import errno
import json
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import trio
import typer.main
from cli.test_distro import write
from kits.models import write_model_folder
from solders.keypair import Keypair
from typer.testing import CliRunner

from psyche.backends.solana.wallet import write_wallet
from psyche.cli.app import app
from psyche.cli.helpers import checks
from psyche.cli.helpers.errors import UNNAMED, describe_os_error
from psyche.errors import BackendError
from psyche.testnet import supervisor
from psyche.testnet.prepare import prepare
from psyche.wire.crypto import Identity
from psyche.wire.key_file import write_key_file

ROOT: Final = Path(__file__).resolve().parents[2]
FULL: Final = "full"
OWNER: Final = "--server-addr 127.0.0.1:1 --state-dir state"
KEY: Final = "01" * 32
# A call of each command that would work. `ran`: the rest of the command is cut off where it would talk to others.
CALLS: Final = {
    "doctor": "",
    "init": "first --yes --no-prepare --data book.txt",
    "train": "--model model.json --data data --out trained --plot loss.html",
    "eval": "model-folder --tasks piqa --task-data folder --cache-dir cache",
    "simulate": "--state my-run --profile home.toml --model model.json --picture p.html --json f.json --events e.jsonl",
    "distro show": "updates/one.distro --plan updates/plan.bin",
    "trace": "logs --picture p.html --json f.json",
    "data tokenize": "book.txt -o tokens/train.bin --held-out eval/held-out.bin --held-out-bytes 2",
    "watch": f"logs --once --save page.html {OWNER}",
    "data manifest": "data -o data.manifest",
    "data prepare": "--dataset chats.jsonl --chat --tokenizer tokenizer --pack-to-sequence-length 8 "
    "--save-to-disk rows",
    "model init": "--config model.json --output model",
    "model convert": "model-folder converted",
    "model pull": "--server-addr 127.0.0.1:1 pulled",
    "model push": "my-run/model owner/name",
    "model chat": "model-folder",
    "model serve": "served",
    "model sample": "model-folder --json-file sample.json",
    "server run": "--state my-run --state-dir new-state --write-log log.json --events-dir events",
    "server validate-config": "--state my-run",
    "client predownload": "-r r --server-addr 127.0.0.1:1 --data-dir client",
    "client train": "--run-id r --server-addr 127.0.0.1:1 --data-dir client --checkpoint-dir checkpoints",
    "client show-identity": "--data-dir state-of-client --create",
    "run set-future-epoch-rates": f"{OWNER} --timeout 0.1 --earning-rate-total-shared 1",
    "run update-config": f"{OWNER} --timeout 0.1 --state my-run",
    "run preview-lr": "my-run",
    "run extend": f"{OWNER} --timeout 0.1 --total-steps 500",
    "local-testnet start": "--num-clients 1 --wait-for-all --config-path my-run --run-dir run --cache-dir cache",
}
WALLET: Final = "wallet_private_key_path"
ON_CHAIN: Final = "--rpc localhost --wallet-private-key-path wallet.json"
EVERYBODY: Final = "11111111111111111111111111111111"  # a key, in base58
# Calls of commands that a chain alone has, and of those of both backends for their wallet.
CHAIN_CALLS: Final = {
    "run create": f"--state my-chain-run {ON_CHAIN}",
    "run set-future-epoch-rates": f"-r r --earning-rate-total-shared 1 {ON_CHAIN}",
    "run update-config": f"-r r --name n {ON_CHAIN}",
    "run explain": f"{EVERYBODY} -r r {ON_CHAIN}",
    "run extend": f"-r r --total-steps 500 {ON_CHAIN}",
    "run checkpoint": f"-r r --repo ada/model {ON_CHAIN}",
    "auth create": f"--authorizer everybody {ON_CHAIN}",
    "auth delegate": f"--join-authority {EVERYBODY} --delegates-added {EVERYBODY} {ON_CHAIN}",
    "auth delete": f"--authorizer everybody {ON_CHAIN}",
    "rewards top-up": f"-r r --collateral-amount 1 {ON_CHAIN}",
    "rewards close": ON_CHAIN,
    "client predownload": "-r r --rpc localhost --data-dir client",
    "client train": f"--run-id r --data-dir client {ON_CHAIN}",
    "client show-wallet": "--wallet-private-key-path new-wallet.json --create",
    "dev validator": "--port 0 --ledger chain --record new.rec --wallet wallet.json",
    "dev replay": "chain.rec",
    "dev idl": "coordinator --output idl.json",
    "dev deploy": f"--keys new-keys {ON_CHAIN}",
    "dev airdrop": ON_CHAIN,
    "dev mint": f"--amount 1 {ON_CHAIN}",
    "model pull": "-r r --rpc localhost pulled",
    "run list": "--rpc localhost",
    "run can-join": f"-r r --address {EVERYBODY} --rpc localhost",
    "rewards show": "-r r --rpc localhost",
    "auth read": f"--join-authority {EVERYBODY} --rpc localhost",
}
OF_A_CHAIN: Final = frozenset({WALLET, "program_ids"})  # options that mean nothing to a server
SERVER_ALONE: Final = frozenset({"run allow", "run disallow", "run allowed", "run collect"})
NO_WALLET: Final = SERVER_ALONE | {"run info", "run explain", "watch"}  # reads none
FOLDERS_OF_A_CLIENT: Final = ("--data-dir", "--checkpoint-dir", "--write-gradients-dir", "--events-dir")


class Ran(BackendError):
    """The command would have begun its work with others."""


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
    for name, one in (inner or {}).items():
        if not one.hidden:  # another name of the same
            yield from walk(one, (*path, name))


def get_path_options(command: Any) -> list[Any]:
    kinds = (Path, list[Path])
    types = [(one, getattr(one, "type_descriptor", None)) for one in command.params]
    return [one for one, kind in types if getattr(kind, "annotation", None) in kinds]


def has_server(name: str, command: Any) -> bool:
    """Whether a command works without a chain."""
    flags = {flag for one in command.params for flag in one.opts}
    return name not in CHAIN_ALONE and ("--rpc" not in flags or "--server-addr" in flags)


CHAIN_ALONE: Final = frozenset({"client show-wallet", "dev validator", "dev replay", "dev idl"})
# "verify" has an exit code of its own for what it cannot read: tests/modeling/verification/test_evidence.py.
COMMANDS: Final = {
    name: command
    for name, command in walk(typer.main.get_command(app))
    if get_path_options(command) and name != "verify"
}


def find_cases() -> Iterator[tuple[str, str, list[Any]]]:
    """A call of each command, and the options of it that name a path; a wallet has a call of its own."""
    for name, command in COMMANDS.items():
        options = [one for one in get_path_options(command) if one.name != WALLET or name not in NO_WALLET]
        others = [one for one in options if one.name not in OF_A_CHAIN]
        if has_server(name, command) and others:
            yield name, find_call(name), others
            options = [one for one in options if one.name in OF_A_CHAIN]
        if options and name not in SERVER_ALONE:
            yield name, CHAIN_CALLS.get(name, f"-r r {ON_CHAIN}"), options


def find_call(name: str) -> str:
    """The call of a command; those of the owner are alike but for what they set."""
    if name in CALLS:
        return CALLS[name]
    required = [one for one in COMMANDS[name].params if one.param_type_name == "argument" or one.name == "key"]
    return f"{KEY if required else ''} {OWNER} --timeout 0.1"


# --- a disk on which everything goes wrong


_watched: list[tuple[Path, int, bool]] = []  # folder, error, whether reading fails too
_hook: list[bool] = []


FILE_EVENTS: Final = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.scandir")


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watched or event not in FILE_EVENTS:
        return
    named = arguments[0]
    path = Path(os.path.abspath(os.fsdecode(named))) if isinstance(named, str | bytes | os.PathLike) else None  # noqa: PTH100
    is_read = event == "os.scandir" or (
        event == "open" and not int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )
    for folder, number, is_for_reads in _watched:
        if path is not None and path.is_relative_to(folder) and (is_for_reads or not is_read):
            raise OSError(number, os.strerror(number), str(named))


@contextmanager
def a_bad_disk(folder: Path, *, is_full: bool) -> Iterator[None]:
    """Below `read-only` nothing can be written, below `locked` nothing read either; a full disk takes no byte."""
    if not _hook:
        sys.addaudithook(_refuse)
        _hook.append(True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    _watched.extend([(folder / "read-only", errno.EROFS, False), (folder / "locked", errno.EACCES, True)])
    if is_full:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        _watched.clear()


FAULTS: Final[dict[str, Callable[[str], str]]] = {
    "missing": lambda _good: "nothing/there",
    "a folder": lambda _good: "folder",
    "a file": lambda _good: "file",
    "below a file": lambda _good: "file/x",
    "read-only": lambda good: f"read-only/{good}",
    "locked": lambda good: f"locked/{good}",
    FULL: lambda _good: "on-full-disk/new",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the calls name."""
    folder = tmp_path_factory.mktemp("good")
    shutil.copytree(ROOT / "config" / "demo", folder / "my-run")
    shutil.copy(ROOT / "config" / "demo" / "model.json", folder / "model.json")
    shutil.copy(ROOT / "config" / "profiles" / "home.toml", folder / "home.toml")
    write_model_folder(folder / "my-run" / "model", **json.loads((folder / "model.json").read_text()))
    shutil.copytree(folder / "my-run" / "model", folder / "served")
    (folder / "served" / "tokenizer.json").write_text("{}")
    for name in ("data", "my-run/standard-library", "model-folder"):
        (folder / name).mkdir()
    for name in ("data/x.bin", "my-run/standard-library/x.bin"):
        (folder / name).write_bytes(bytes(4096))
    (folder / "model-folder" / "config.json").write_text("{}")
    shutil.copytree(ROOT / "config" / "demo-solana", folder / "my-chain-run")
    write_wallet(folder / "wallet.json", Keypair())
    (folder / "chain.rec").write_bytes(b"no record")
    (folder / "book.txt").write_text("hello")
    (folder / "chats.jsonl").write_text('{"messages": []}\n')
    (folder / "tokenizer").mkdir()
    (folder / "updates").mkdir()
    write(folder / "updates", one_bit=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "events.jsonl").write_text('{"t": 1.0, "node": "a", "kind": "finished"}\n')
    for name in ("state/server.key", "state-of-client/identity.key"):
        write_key_file(folder / name, Identity(bytes(32)))
    for name in ("folder", "on-full-disk"):
        (folder / name).mkdir()
    (folder / "file").write_text("some text\n" * 9)
    return folder


def renew(place: Path, template: Path) -> None:
    """The place as it was; weights, which no command writes here, are links."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(
        template, place, copy_function=lambda a, b: (os.link if "model.safetensors" in a else shutil.copy2)(a, b)
    )
    for name in ("read-only", "locked"):  # the same files again, with other names
        (place / name).symlink_to(template)
    os.chdir(place)


def take_stock(place: Path) -> dict[Path, tuple[int, int]]:
    """What is there, and when it changed last."""
    files = {path: path.lstat() for path in (place, *place.rglob("*"))}
    return {path: (status.st_ctime_ns, status.st_size) for path, status in files.items()}


@pytest.fixture
def place(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # and back at the end
    renew(tmp_path / "place", template)
    return tmp_path / "place"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is asked of others, and nothing slow is loaded or played."""
    monkeypatch.setenv("HF_TOKEN", "token")
    run = trio.run

    def cut_off(function: Callable[..., Any], *arguments: Any) -> Any:
        if function.__name__ in ("run_embedded", "check", "call"):  # a chain is opened, without programs, or a target
            return run(function)
        if function is supervisor.run_testnet:
            run(prepare, arguments[0], str)
        raise Ran("ran")

    def stop(*_arguments: Any, **_options: Any) -> Any:
        raise Ran("ran")

    monkeypatch.setattr(trio, "run", cut_off)
    for name in ("tcp.target.dial", "solana.target.open_rpc", "solana.member.entry.open_rpc"):
        monkeypatch.setattr(f"psyche.backends.{name}", stop)
    monkeypatch.setattr("psyche.backends.tcp.owner.TcpAdministration._ask", stop)
    monkeypatch.setattr("psyche.localchain.chain.load_programs", dict)
    monkeypatch.setattr("psyche.cli.commands.dev.fund", stop)
    for name in ("server.preflight", "drafting.model_choice"):
        monkeypatch.setattr(f"psyche.{name}.describe_model", lambda *_: None)
    monkeypatch.setattr("psyche.modeling.trainer.describe._recall", stop)
    for name in ("chats", "prepare"):
        monkeypatch.setitem(sys.modules, f"psyche.standalone.{name}", SimpleNamespace(Encoder=stop, describe_row=stop))
    monkeypatch.setattr("psyche.cli.commands.train._run", stop)
    monkeypatch.setattr("psyche.cli.commands.simulate._foretell", stop)
    monkeypatch.setattr(checks, "get_checks", lambda folder, _port, **_: [lambda: checks.check_disk(folder)])
    monkeypatch.setitem(sys.modules, "psyche.standalone.sample", SimpleNamespace(sample_model=stop))
    monkeypatch.setitem(sys.modules, "psyche.standalone.chat", SimpleNamespace(Chat=stop))
    examinee = SimpleNamespace(EvalSettings=SimpleNamespace, evaluate=stop)
    monkeypatch.setitem(sys.modules, "psyche.standalone.evaluate", examinee)
    make = SimpleNamespace(
        init_model=lambda _config, output, _seed, **_: output.mkdir(parents=True, exist_ok=True) or 1,
        convert_model=lambda source, output: (
            (list(source.iterdir()) and output.mkdir(parents=True, exist_ok=True)) or 1
        ),
    )
    monkeypatch.setitem(sys.modules, "psyche.modeling.model", make)


def change(call: list[str], option: Any, value: str) -> list[str]:
    """The call with another value of one path option."""
    if option.param_type_name == "argument":
        return [value, *call[1:]]
    for name in option.opts:
        if name in call:
            return [*call[: call.index(name) + 1], value, *call[call.index(name) + 2 :]]
    return [*call, option.opts[-1], value]


def find_good(call: list[str], option: Any) -> str:
    if option.param_type_name == "argument":
        return call[0]
    return next((call[call.index(name) + 1] for name in option.opts if name in call), "new")


@pytest.mark.parametrize(
    ("name", "text", "options"), [pytest.param(*case, id=f"{case[0]}: {len(case[2])}") for case in find_cases()]
)
def test_a_path_that_the_system_refuses_is_one_sentence(
    name: str, text: str, options: list[Any], place: Path, template: Path
) -> None:
    call, stock = text.split(), take_stock(place)
    for option in options:
        for fault, choose in FAULTS.items():
            if take_stock(place) != stock:  # most calls change nothing
                renew(place, template)
                stock = take_stock(place)
            value = choose(find_good(call, option))
            with a_bad_disk(place, is_full=fault == FULL):
                result = CliRunner().invoke(app, [*name.split(), *change(call, option, value)])
            what = f"psyche {name}: {option.opts[0]} is {fault}\n{result.output}"
            assert result.exception is None or isinstance(result.exception, SystemExit), f"{what}{result.exception!r}"
            assert "Traceback" not in result.output, what
            if result.exit_code == 0 or "error: ran" in result.output:
                assert fault != "below a file", f"{what}: was taken"
                continue
            assert result.exit_code == 1, what
            told = [line for line in result.output.splitlines() if line.startswith(("error: ", "fail "))]  # of doctor
            assert told, what
            # a full disk may be met first by a file beside the one that was named
            assert any(value.split("/")[0] in line for line in told) or (fault == FULL and UNNAMED not in told[0]), what


@pytest.mark.parametrize("option", FOLDERS_OF_A_CLIENT)
@pytest.mark.parametrize("fault", ["a file", "below a file", "read-only", "locked", FULL])
def test_a_client_does_not_begin_with_a_folder_that_it_cannot_write(option: str, fault: str, place: Path) -> None:
    value = FAULTS[fault]("new")
    with a_bad_disk(place, is_full=fault == FULL):
        result = CliRunner().invoke(app, ["client", "train", *CALLS["client train"].split(), option, value])
    assert result.exit_code == 1
    met = "--data-dir client" if fault == FULL and option != "--data-dir" else f"{option} {value}"  # all disks are full
    assert result.output.startswith(f"error: {met}: ")
    assert not (place / "client").exists()


@pytest.mark.parametrize("fault", ["missing", "a file", "below a file", "locked"])
def test_a_client_does_not_begin_with_a_local_root_that_it_cannot_read(fault: str, place: Path) -> None:
    value = FAULTS[fault](".")
    with a_bad_disk(place, is_full=False):
        result = CliRunner().invoke(app, ["client", "train", *CALLS["client train"].split(), "--local-root", value])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: --local-root {place / value}: ")


@pytest.mark.parametrize("fault", ["missing", "a file", "below a file", "locked"])
def test_a_client_does_not_begin_with_task_data_that_it_cannot_read(fault: str, place: Path) -> None:
    value = FAULTS[fault](".")
    call = [*CALLS["client train"].split(), "--eval-tasks", "piqa", "--eval-task-data", value]
    with a_bad_disk(place, is_full=False):
        result = CliRunner().invoke(app, ["client", "train", *call])
    assert result.exit_code == 1
    assert result.output.startswith(f"error: --eval-task-data {Path(value)}: ")


def test_a_client_does_not_begin_with_a_device_that_is_none(place: Path) -> None:
    result = CliRunner().invoke(app, ["client", "train", *CALLS["client train"].split(), "--device", "gpu"])
    assert (result.exit_code, result.output[:21]) == (1, "error: --device gpu: ")
    assert not (place / "client").exists()


@pytest.mark.parametrize("call", ["run info", "client train --run-id r"])
def test_an_address_that_is_none_is_one_sentence_as_all_errors(call: str) -> None:
    result = CliRunner().invoke(app, [*call.split(), "--server-addr", "nonsense"])
    assert result.exit_code == 1
    assert result.output == "error: --server-addr 'nonsense': must be HOST:PORT, such as 192.0.2.7:19400\n"


def test_every_error_says_what_to_do_or_at_least_what_it_is() -> None:
    for number in errno.errorcode:
        told = describe_os_error(OSError(number, os.strerror(number), "/a/path"))
        assert told.startswith("/a/path: ")
        assert len(told) > len("/a/path: ")
    assert describe_os_error(OSError(errno.EXDEV, "other disk", "/a", None, "/b")) == "/a and /b: other disk"
    assert describe_os_error(OSError(errno.ENOSPC, "x")).startswith("the system refused an operation: the disk is full")
