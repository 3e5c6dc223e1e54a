"""What deciding a round without an agreed root costs a client's event loop: 256 members, 32 records; CPU time.

Each honest witness lacks another member, and ten lie: roots that stand for no list, and blooms with everything in
them. With them: eight members that signed two results, both of which everybody has heard.
"""

from hashlib import sha256
from time import process_time

from _table import build_parser, finish, print_table

from psyche.core.committee.bloom import compute_bloom
from psyche.core.committee.decision import DecisionView, decide, find_table
from psyche.core.committee.results import compute_results_root
from psyche.core.state.bits import compute_bits
from psyche.core.state.state import WitnessRecord

MEMBERS, WITNESSES, QUORUM, LIARS = 256, 32, 22, 10
EVERYBODY = (1 << MEMBERS) - 1
SEED = bytes(32)
LIMIT_MS = 50.0


def commit(member: int, version: int = 0) -> bytes:
    return sha256(b"%d %d" % (member, version)).digest()


def make_records(several: int) -> list[WitnessRecord]:
    everything = [commit(m) for m in range(MEMBERS)] + [commit(m, 1) for m in range(several)]
    records: list[WitnessRecord] = []
    for witness in range(WITNESSES):
        listed = {m: commit(m) for m in range(MEMBERS) if m != witness}
        held, bloom = compute_bits(listed), compute_bloom(SEED, witness, listed.values())
        root = compute_results_root(0, 0, held, listed)
        if witness < LIARS:
            bloom, root = compute_bloom(SEED, witness, everything), sha256(bloom).digest()
        records.append(WitnessRecord(member=witness, held=held, broadcast_bloom=bloom, results_root=root))
    return records


def measure_ms(several: int, repeats: int) -> tuple[float, float]:
    """Medians: of finding the tables among known results, and of deciding by them."""
    records = make_records(several)
    known = {m: [commit(m), commit(m, 1)] if m < several else [commit(m)] for m in range(MEMBERS)}
    finding: list[float] = []
    deciding: list[float] = []
    for _ in range(repeats):
        start = process_time()
        found = {r.member: find_table(r, EVERYBODY, SEED, 0, 0, known) for r in records}
        finding.append(process_time() - start)
        tables = {witness: table for witness, table in found.items() if table is not None}
        assert len(tables) == WITNESSES - LIARS
        view = DecisionView(
            members=EVERYBODY, owed=EVERYBODY, seed=SEED, n=WITNESSES, q=QUORUM, agreed_root=None, agreed_held=0,
            records=records, tables=tables,
        )  # fmt: skip
        start = process_time()
        decide(view)
        deciding.append(process_time() - start)
    return sorted(finding)[repeats // 2] * 1e3, sorted(deciding)[repeats // 2] * 1e3


def main() -> None:
    args = build_parser(__doc__).parse_args()
    repeats = 5 if args.quick else 51
    took = {several: measure_ms(several, repeats) for several in (0, 8)}
    rows = [(several, *took[several], LIMIT_MS) for several in took]
    header = ["members with two results", "finding tables, ms", "deciding, ms", "limit of each, ms"]
    print_table("A round of 256 members and 32 records", header, rows)
    finish(args, {f"{name}_{s}_ms": ms for s, both in took.items()
                  for name, ms in zip(("finding", "deciding"), both, strict=True)})  # fmt: skip


if __name__ == "__main__":
    main()
