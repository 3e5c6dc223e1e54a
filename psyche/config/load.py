"""Loading of run.toml, state.toml and data.toml: each file is checked as a whole and all problems are reported.

Whatever is wrong with a file is a `ConfigProblems`, with file, line, key, rule and remedy of each problem.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from psyche.config.access import find_access_warnings, get_access
from psyche.config.explain import explain, format_key, get_line
from psyche.config.problems import ConfigProblems, Problem
from psyche.config.rules import find_warnings
from psyche.config.scanner import KeyPath, find_lines
from psyche.config.schema import ConfigTable, DataFile, ModelTable, RunFile
from psyche.config.table import Table
from psyche.config.values import TOKEN_SIZE_BYTES
from psyche.core.encoding.data_manifest import MAX_DATA_MANIFEST_BYTES, decode_data_manifest
from psyche.core.state.config_checks import (
    BrokenRule,
    find_bootstrap_problems,
    find_config_problems,
    find_progress_problems,
)
from psyche.core.state.limits import MAX_TIME_S, RUN_ID_BYTES
from psyche.core.state.settings import get_keys
from psyche.core.state.state import (
    ZERO32,
    CheckpointKind,
    Config,
    Metadata,
    Model,
    Progress,
)
from psyche.durable import expand_user, read_file, resolve_path
from psyche.errors import WireError
from psyche.telemetry.text import describe_parse_failure
from psyche.wire.access import MAX_KEYS, Access
from psyche.wire.crypto import blob_id_of
from psyche.wire.peer_address import EXAMPLE, parse_peer_address

DATA_MANIFEST_NAME: Final = "data.manifest"  # beside a run's file, and below a client's --local-root
NO_MANIFEST: Final = "none"
RUN_FILE_NAMES: Final = ("state.toml", "run.toml", "config.toml")
MAX_FILE_BYTES: Final = 1 << 20
# Replacements for keys of [config] that cannot be read, so that the other keys can be checked; they break no rule.
HARMLESS: Final = {name: one.stand_in for name, one in get_keys(Config).items() if one.is_needed} | {
    "rounds_per_epoch": 1  # an epoch needs an end
}
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_T = TypeVar("_T", bound=Table)


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run as described by its owner. Relative paths start at `folder`."""

    run_id: str
    config: Config
    model: Model
    metadata: Metadata
    path: Path  # absolute
    warnings: tuple[str, ...]
    progress: Progress = field(default_factory=Progress)
    pending_pause: bool = False
    bootstrap: tuple[str, ...] = ()
    access: Access = field(default_factory=Access)
    data_manifest: Path | None = None  # where the manifest of its data would be
    lines: Mapping[KeyPath, int] = field(default_factory=dict[KeyPath, int], repr=False, compare=False)

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def model_folder(self) -> Path | None:
        """Where this machine would have the run's model; None unless it comes from a Local folder."""
        source = self.model.checkpoint
        return self.resolve(source.name) if source.kind is CheckpointKind.LOCAL else None

    def resolve(self, relative: str) -> Path:
        """Make a path from the file (a Local checkpoint or data location) absolute."""
        return resolve_path(self.folder, relative)

    def make_problem(self, path: KeyPath, what: str, right: str = "") -> Problem:
        return Problem(self.path, get_line(path, self.lines), format_key(path), what, right)


@dataclass(frozen=True, slots=True)
class LoadedData:
    """A data.toml. `folder` is absolute; `shuffle_seed` has 32 bytes, or None if the data is not shuffled."""

    folder: Path
    token_size_bytes: int
    sequence_length: int
    shuffle_seed: bytes | None
    path: Path
    lines: Mapping[KeyPath, int] = field(default_factory=dict[KeyPath, int], repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class _Document:
    file: Path
    raw: dict[str, Any]
    lines: Mapping[KeyPath, int]


def find_run_file(path: Path) -> Path:
    """The file meant by `--state`: the path itself, or a folder's first of state.toml, run.toml, config.toml."""
    if not path.is_dir():
        return path
    for name in RUN_FILE_NAMES:
        if (path / name).is_file():
            return path / name
    names = ", ".join(RUN_FILE_NAMES)
    raise ConfigProblems([Problem(path, None, "", "the folder has no run configuration", f"one of {names}")])


def find_data_manifest(named: str | None, folder: Path) -> Path | None:
    """Where the manifest of a run's data would be: at `named`, "none" being nowhere, or else in `folder`."""
    if named is None:
        return folder / DATA_MANIFEST_NAME
    return None if named == NO_MANIFEST else expand_user(named).absolute()


def load_run(path: Path, data_manifest: str | None = None) -> LoadedRun:
    """Load a run.toml or state.toml, or the one in a folder; the manifest of its data sets `data_root` (D1).

    `data_manifest` is the manifest's file, or "none"; None: data.manifest beside the run's file, if it is there.
    """
    document = _read(find_run_file(path).absolute())
    table, problems = _parse(document, RunFile)
    problems += _find_broken_rules(document, table)
    run_id = (table.run_id if table else None) or resolve_path(document.file.parent, "").name
    if len(run_id.encode()) > RUN_ID_BYTES:
        what = f"the folder's name {run_id!r} has more than {RUN_ID_BYTES} bytes, too long for the run's name"
        problems.append(Problem(document.file, None, "run_id", what, f'run_id = "..." of at most {RUN_ID_BYTES} bytes'))
    elif not RUN_NAME.fullmatch(run_id):
        what = f"{run_id!r} is not a valid name: it is used in folder names and command lines"
        right = "letters, digits, dots, dashes and underscores, beginning with a letter or digit"
        problems.append(Problem(document.file, None, "run_id", what, right))
    if table is not None and (count := get_access(table.access).count_keys()) > MAX_KEYS:
        line = get_line(("access",), document.lines)
        what = f"has {count:,} keys, counting grantees and delegates"
        problems.append(Problem(document.file, line, "access", what, f"at most {MAX_KEYS:,}"))
    if problems or table is None:
        raise ConfigProblems(problems)
    config, model, access = Config(**dict(table.config)), Model(**dict(table.model.llm)), get_access(table.access)
    manifest = find_data_manifest(data_manifest, document.file.parent)
    is_read = manifest is not None and (data_manifest is not None or manifest.is_file())
    if manifest is not None and is_read:
        config = replace(config, data_root=_read_data_root(manifest, config.data_root, document))
    warnings = (*find_warnings(config, model, has_manifest=is_read), *find_access_warnings(access))
    return LoadedRun(
        run_id, config, model, Metadata(**dict(table.metadata)), document.file, warnings,
        Progress(**dict(table.progress)), table.pending_pause, tuple(table.bootstrap), access, manifest, document.lines,
    )  # fmt: skip


def _read_data_root(path: Path, stated: bytes, document: _Document) -> bytes:
    try:
        raw = read_file(path, MAX_DATA_MANIFEST_BYTES)
        decode_data_manifest(raw)
    except (OSError, WireError) as error:
        what = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConfigProblems([Problem(path, None, "", what, "one made by `psyche data manifest`")]) from error
    root = blob_id_of(raw)
    if stated not in (ZERO32, root):
        key: KeyPath = ("config", "data_root")
        what = f"is {stated.hex()[:16]}…, but {path} has the id {root.hex()}"
        right = "no value, since the manifest sets it, or --data-manifest with the file that has this id"
        raise ConfigProblems([Problem(document.file, get_line(key, document.lines), format_key(key), what, right)])
    return root


def load_data(path: Path) -> LoadedData:
    """Load a data.toml, or the one in a folder."""
    document = _read((path / "data.toml" if path.is_dir() else path).absolute())
    table, problems = _parse(document, DataFile)
    if table is None:
        raise ConfigProblems(problems)
    folder, size_bytes = resolve_path(document.file.parent, table.dir), TOKEN_SIZE_BYTES[table.token_size]
    return LoadedData(folder, size_bytes, table.seq_len, table.shuffle_seed, document.file, document.lines)


def read_table(path: Path, kind: type[_T]) -> _T:
    """Load any other TOML file as a table of type `kind`."""
    table, problems = _parse(_read(path.absolute()), kind)
    if table is None:
        raise ConfigProblems(problems)
    return table


def find_local_data(path: Path) -> LoadedData | None:
    """Load the data.toml that a Local data location names or contains; None for a plain file or folder."""
    if path.suffix == ".toml" or (path / "data.toml").is_file():
        return load_data(path)
    return None


def _read(file: Path) -> _Document:
    try:
        text = read_file(file, MAX_FILE_BYTES).decode("utf-8").replace("\r\n", "\n")
        return _Document(file, tomllib.loads(text), find_lines(text))
    except OSError as error:
        raise ConfigProblems([Problem(file, None, "", f"cannot be read: {error.strerror}")]) from error
    except (ValueError, RecursionError) as error:
        what = f"is not TOML: {describe_parse_failure(error)}"
        raise ConfigProblems([Problem(file, None, "", what)]) from error


def _parse(document: _Document, kind: type[_T]) -> tuple[_T | None, list[Problem]]:
    try:
        return kind.model_validate(document.raw), []
    except ValidationError as error:
        found = error.errors(include_url=False)
        return None, [explain(e, document.raw, kind, document.lines, document.file) for e in found]


def _find_broken_rules(document: _Document, table: RunFile | None) -> list[Problem]:
    """Check the core's rules on those of [config] and [model.LLM] that can be read."""
    unread: frozenset[str] = frozenset()
    if table is not None:
        config, model = Config(**dict(table.config)), Model(**dict(table.model.llm))
    else:
        config, unread = _read_config(document.raw.get("config"))
        model = _read_model(document.raw.get("model"))
    broken = find_config_problems(config or Config(), model or Model())
    if table is not None:
        broken += find_progress_problems(Progress(**dict(table.progress)), config or Config())
        broken += [*find_bootstrap_problems(table.bootstrap)] or [*_find_undialable(table.bootstrap)]
    problems: list[Problem] = []
    for key, what, right in broken:
        if (model if key.startswith("model") else config) is None:
            continue  # the table of this rule cannot be read
        if key.removeprefix("config.") in unread:
            continue  # a problem with this key is reported already
        path = _find_key_path(key, what, document.raw)
        problems.append(Problem(document.file, get_line(path, document.lines), format_key(path), what, right))
    return problems


def _find_undialable(addresses: Sequence[str]) -> Iterator[BrokenRule]:
    """Find addresses that clients cannot dial: those that do not name the node's key. The record accepts them."""
    for address in addresses:
        try:
            parse_peer_address(address)
        except WireError as error:
            yield BrokenRule("bootstrap", f"{address!r}: {error}", f"addresses like {EXAMPLE!r}")


def _read_config(raw: object) -> tuple[Config | None, frozenset[str]]:
    """Read [config]; keys that cannot be read are returned too and get harmless values."""
    if not isinstance(raw, dict):
        return None, frozenset()
    table = cast("dict[str, object]", raw)
    try:
        return Config(**dict(ConfigTable.model_validate(table))), frozenset()
    except ValidationError as error:
        unread = frozenset(str(problem["loc"][0]) for problem in error.errors() if problem["loc"])
    readable = {key: value for key, value in table.items() if key not in unread}
    if "epoch_time" in unread:
        readable["epoch_time"] = MAX_TIME_S  # any end will do for the check of the other keys
    return Config(**dict(ConfigTable.model_validate({**HARMLESS, **readable}))), unread


def _read_model(raw: object) -> Model | None:
    try:
        return Model(**dict(ModelTable.model_validate(raw).llm))
    except ValidationError:
        return None


def _find_key_path(key: str, what: str, raw: Mapping[str, Any]) -> KeyPath:
    """The path of a rule's key; the text of a rule on a whole table begins with the key's name."""
    path: KeyPath = tuple(key.split("."))
    node: object = raw
    for part in path:
        node = cast("dict[str, object]", node).get(part) if isinstance(node, dict) else None
    return path + (_find_below(what.split(maxsplit=1)[0], node) or ())


def _find_below(name: str, node: object) -> KeyPath | None:
    if not isinstance(node, dict):
        return None
    table = cast("dict[str, object]", node)
    if name in table:
        return (name,)
    for key, inner in table.items():
        if (found := _find_below(name, inner)) is not None:
            return (key, *found)
    return None
