"""`psyche distro` and `psyche verify`: the updates that members send, and whether they worked for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from psyche.cli.helpers.common import make_group
from psyche.cli.helpers.target import command
from psyche.errors import ConfigError, PsycheError, WireError
from psyche.telemetry.text import format_bytes, format_tables

if TYPE_CHECKING:
    from psyche.core.encoding.plan import TransformPlan
    from psyche.modeling.distro.codec import ChunkSets

EXIT_GUILTY: Final = 3
EXIT_UNDECIDED: Final = 4
MAX_PLAN_BYTES: Final = 64 << 20  # a plan has some 100 bytes for each tensor
group = make_group(
    "Read the updates that members send.",
    "psyche client train --run-id my-run --server-addr 127.0.0.1:19400 \\",
    "    --write-gradients-dir ada/updates --write-gradients all",
    "psyche distro show ada/updates/epoch-00001-round-000012.distro",
)


@command(group, "show", "psyche distro show ada/updates/epoch-00001-round-000012.distro")
def show(
    *,
    file: Annotated[Path, typer.Argument(help="An update that `psyche client train --write-gradients-dir` wrote.")],
    plan: Annotated[
        Path | None, typer.Option(help="The plan of the run's model; default: plan.bin beside the file.")
    ] = None,
) -> None:
    """Show what an update has for each tensor.

    The weights and chunks of the tensor, the coefficients sent, and the share of positive ones among them. Where whole
    values are sent and not only signs, also the sum of their magnitudes.
    """
    from psyche.core.encoding.plan import decode_plan, get_payload_bytes
    from psyche.modeling.distro.codec import PLAN_NAME, decode_payload

    place = plan or file.parent / PLAN_NAME
    for path in (file, place):
        if not path.is_file():
            raise ConfigError(f"{path}: there is no such file; updates are shown by the plan.bin in their folder")
    if place.stat().st_size > MAX_PLAN_BYTES:
        raise ConfigError(f"{place}: {format_bytes(place.stat().st_size)}, which no plan has")
    with _naming(place):
        found = decode_plan(place.read_bytes())
    if file.stat().st_size != get_payload_bytes(found):
        raise ConfigError(
            f"{file}: {file.stat().st_size:,} bytes, by {place} an update has {get_payload_bytes(found):,}: it is of "
            "another model, or cut off"
        )
    with _naming(file):
        sets = decode_payload(found, file.read_bytes())
    rows = [row for number, one in enumerate(sets) for row in describe(found, number, one)]
    head = ["tensor", "weights", "chunks", "sent", "positive", "magnitude"]
    columns = len(head) if sets[0].values.dtype.kind == "f" else len(head) - 1
    typer.echo(format_tables(head[:columns], [row[:columns] for row in sorted(rows)]))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise ConfigError(f"{path}: {error}") from error


def describe(plan: "TransformPlan", number: int, sets: "ChunkSets") -> list[list[str]]:
    """A row for each tensor of a group."""
    group, first = plan.groups[number], 0
    rows: list[list[str]] = []
    for tensor in (plan.tensors[place] for place in group.tensors):
        rows_of = slice(first, first + tensor.chunks)
        chosen = sets.values[rows_of][sets.indices[rows_of] < group.area]
        first += tensor.chunks
        positive = f"{(chosen > 0).mean():.1%}" if chosen.size else "-"
        size, magnitude = tensor.chunks * group.area, f"{abs(chosen).sum():.4g}"
        rows.append([tensor.name, f"{size:,}", f"{tensor.chunks:,}", f"{chosen.size:,}", positive, magnitude])
    return rows


def verify(
    *,
    file: Annotated[Path, typer.Argument(help="Evidence that a client kept.")],
    weights: Annotated[Path, typer.Option(help="A snapshot of the weights that the epoch began with.")],
    replay: Annotated[Path, typer.Option(help="The replay store of a client that followed the epoch.")],
) -> None:
    """Judge a member by evidence, without its run.

    What the member is accused of, a piece of its work or a whole round, is computed again and compared with what it
    showed. Exits with 0 if the member is innocent, 3 if it is guilty, and 4 if that cannot be said, which it explains.
    """
    import trio

    try:
        code, text = trio.run(_verify, file, weights, replay)
    except (PsycheError, OSError) as error:
        code, text = EXIT_UNDECIDED, f"cannot be said: {error}"
    typer.echo(text)
    raise typer.Exit(code)


async def _verify(file: Path, weights: Path, replay: Path) -> tuple[int, str]:
    from psyche.client.judging import judge, read_case
    from psyche.client.runtime.weights.replay import ReplayStore
    from psyche.core.encoding.evidence import MAX_PART_BYTES
    from psyche.durable import read_file
    from psyche.modeling.trainer.process import TrainerProcess
    from psyche.telemetry.challenges import ACCUSATIONS
    from psyche.wire.trainer import LoadRequest

    case = read_case(read_file(file, MAX_PART_BYTES))
    for folder in (weights, replay):
        if not folder.is_dir():
            raise ConfigError(f"{folder}: there is no such folder")
    load = LoadRequest(
        path=str(weights), is_snapshot=True, model=case.state.model, micro_batch_size=1, device="cpu",
        keep_momentum=False, verifies=True,
    )  # fmt: skip
    trainer = TrainerProcess()
    try:
        judged = await judge(trainer, case, load, ReplayStore(replay, 0).read)
    finally:
        await trainer.stop()
    code, word = {
        False: (0, "innocent"), True: (EXIT_GUILTY, "guilty"), None: (EXIT_UNDECIDED, "cannot be said"),
    }[judged.guilty]  # fmt: skip
    header, evidence = case.accused, case.evidence
    piece = f", piece {evidence.piece}" if evidence.table else ""
    return code, (
        f"member {header.member}, round {header.height} of epoch {header.epoch}{piece}, is accused: "
        f"{ACCUSATIONS[evidence.reason]}. Found: {judged.found}: {word}"
    )
