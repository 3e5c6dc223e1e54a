"""How fast a watcher folds event logs, and what it then holds in memory."""

import resource
import tempfile
from pathlib import Path
from time import process_time

from _table import build_parser, finish, print_table

from psyche.core.state.enums import RunState
from psyche.telemetry import types
from psyche.telemetry.events import EventLog
from psyche.watch.sources import LogSource

KEY = bytes(32)


def write_round(log: EventLog, member: int, members: int, height: int) -> None:
    """The sixteen events of a member's round."""
    place = {"epoch": height // 100, "height": height % 100, "step": height + 1}
    here = {"epoch": place["epoch"], "height": place["height"]}
    log.emit(types.StateChanged(**place, run_state=RunState.ROUND_TRAIN, members=members))
    log.emit(types.RoundStarted(**place, drain=False))
    log.emit(types.Trained(
        **place, loss=3.0, tokens=4_096, seconds=1.5, compute_seconds=1.4, micro_batch_size=8, grad_norm=0.5,
        data_hash=KEY,
    ))  # fmt: skip
    log.emit(types.ResultSent(**place, bytes=45_000, loss=3.0, commitment=KEY))
    for number in range(6):
        log.emit(types.PayloadReceived(from_member=(member + number) % members, height=here["height"], bytes=45_000))
    wait = {"what": f"payloads of member 1 of round {height}", "until": 1e9, "wait": types.Wait.PAYLOADS}
    log.emit(types.WaitStarted(**wait, then="go on", members=(1,), height=here["height"]))
    log.emit(types.WaitEnded(**wait, outcome=types.WaitOutcome.FETCHED))
    log.emit(types.WitnessSent(**here, reason="complete"))
    log.emit(types.Decided(height=here["height"], members=tuple(range(members)), void=False))
    log.emit(types.Applied(**place, members=tuple(range(members)), count=members, update=True, digest=KEY))
    log.emit(types.Network(**dict.fromkeys((one.name for one in types.get_fields(types.Network)), height)))


def main() -> None:
    args = build_parser(__doc__).parse_args()
    members, rounds = (8, 100) if args.quick else (32, 1_000)
    with tempfile.TemporaryDirectory() as folder:
        for member in range(members):
            log = EventLog(Path(folder) / f"client-{member}" / "events.jsonl", node=f"client-{member}")
            for height in range(rounds):
                write_round(log, member, members, height)
            log.close()
        source, start = LogSource(Path(folder)), process_time()
        while source.read():
            pass
        seconds = process_time() - start
    events, peak_mb = source.view.revision, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    assert source.view.nodes["client-0"].rounds_trained == rounds
    result: dict[str, object] = {"events": events, "per_s": events / seconds, "peak_mb": peak_mb}
    columns = ("members", "rounds", "events", "events/s", "peak MB")
    print_table("folding event logs", columns, [(members, rounds, *result.values())])
    finish(args, result)


if __name__ == "__main__":
    main()
