"""What the chain in a box costs: updates of a run's account to many subscribers, and calls.

    python benchmarks/local_chain.py                    32 subscribers, as clients of a run are
    python benchmarks/local_chain.py --subscribers 8

The chain is one process; subscribers and callers are another one, so with two cores each has its own.
"""

import argparse
import base64
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import httpx2
import trio
from _table import build_parser, finish, print_table
from kits.runs import build_training
from solders.account import Account
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from psyche.backends.solana.interface.addresses import COORDINATOR
from psyche.core.encoding.account import encode_state
from psyche.core.state.limits import STATE_BYTES
from psyche.localchain.chain import LocalChain, open_local_chain

ENCODINGS: Final = ("base64+zstd", "base64")
CALLERS: Final = 8
TRANSFERS: Final = 1_000


# --- the other process --------------------------------------------------------------------------------------


async def subscribe(told: dict[str, Any]) -> None:
    """Say after each update that all subscribers have it, and how many bytes one of them was sent."""
    counts = [0] * told["subscribers"]

    async def follow(number: int, http: httpx2.AsyncClient, ready: trio.Event) -> None:
        async with http.websocket(told["ws"], max_message_size_bytes=64 << 20) as ws:
            options = {"encoding": told["encoding"], "commitment": "confirmed"}
            params = [told["key"], options]
            await ws.send_json({"jsonrpc": "2.0", "id": 1, "method": "accountSubscribe", "params": params})
            await ws.receive_text()
            ready.set()
            while True:
                text = await ws.receive_text()
                counts[number] += 1
                if min(counts) == counts[number]:
                    print(len(text), flush=True)

    async with httpx2.AsyncClient(trust_env=False) as http, trio.open_nursery() as nursery:
        for number in range(told["subscribers"]):
            ready = trio.Event()
            nursery.start_soon(follow, number, http, ready)
            await ready.wait()
        print("ready", flush=True)


async def call(told: dict[str, Any]) -> None:
    """Make calls for some seconds from several connections, and say how many a second were answered."""
    requests = iter(told["requests"]) if told["requests"] else None
    answered, ends = 0, time.perf_counter() + told["seconds"]
    began = time.perf_counter()

    async def ask(http: httpx2.AsyncClient) -> None:
        nonlocal answered
        while time.perf_counter() < ends:
            request = next(requests, None) if requests else told["request"]
            if request is None:
                return
            reply = (await http.post(told["http"], json=request)).json()
            assert "result" in reply, reply
            answered += 1

    async with httpx2.AsyncClient(trust_env=False) as http, trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(ask, http)
    print(answered / (time.perf_counter() - began), flush=True)


# --- the chain ----------------------------------------------------------------------------------------------


def start(what: str, told: dict[str, Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(told))
    process.stdin.close()
    return process


async def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = await trio.to_thread.run_sync(process.stdout.readline)
    assert line, "the other process ended"
    return line.strip()


async def measure_updates(
    chain: LocalChain, raw: bytes, encoding: str, subscribers: int, updates: int
) -> dict[str, float]:
    """Write an account again and again; each time all subscribers must have it before the next."""
    key = Pubkey.new_unique()
    told = {"ws": chain.ws, "key": str(key), "encoding": encoding, "subscribers": subscribers}
    process = start("subscribe", told)
    try:
        assert await read_line(process) == "ready"
        sizes: list[int] = []
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(updates):
            write(chain, key, raw[:-8] + number.to_bytes(8, "little"))
            sizes.append(int(await read_line(process)))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        process.kill()
        process.wait()
    return {
        "updates_per_s": updates / wall,
        "chain_cpu_ms_per_update": 1_000 * cpu / updates,
        "bytes_per_notification": sum(sizes) / updates,
        "megabytes_per_s": subscribers * sum(sizes) / wall / 1e6,
    }


def write(chain: LocalChain, key: Pubkey, raw: bytes) -> None:
    chain.bank.put_account(key, Account(chain.bank.get_deposit(STATE_BYTES), raw, COORDINATOR))
    chain.bank.advance(int(time.time()))


async def measure_calls(chain: LocalChain, raw: bytes, seconds: float) -> dict[str, float]:
    key = Pubkey.new_unique()
    write(chain, key, raw)
    options = {"encoding": "base64+zstd", "commitment": "confirmed"}
    kinds: dict[str, dict[str, Any]] = {
        "getSlot": {"request": build_request("getSlot")},
        "getAccountInfo, the full run": {"request": build_request("getAccountInfo", str(key), options)},
        "sendTransaction, a transfer": {"requests": build_transfers(chain)},
    }
    found: dict[str, float] = {}
    for name, kind in kinds.items():
        process = start("call", {"http": chain.http, "seconds": seconds, "requests": None, **kind})
        found[name] = float(await read_line(process))
        process.wait()
    return found


def build_request(method: str, *params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def build_transfers(chain: LocalChain) -> list[dict[str, Any]]:
    payer, to = Keypair(), Keypair().pubkey()
    chain.bank.airdrop(payer.pubkey(), 10**12)
    raw = [build_transfer(payer, to, 10**6 + number, chain.bank.newest_hash) for number in range(TRANSFERS)]
    return [build_request("sendTransaction", base64.b64encode(one).decode(), {"encoding": "base64"}) for one in raw]


def build_transfer(payer: Keypair, to: Pubkey, lamports: int, block_hash: Hash) -> bytes:
    giving = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))
    return bytes(VersionedTransaction(Message.new_with_blockhash([giving], payer.pubkey(), block_hash), [payer]))


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    updates, seconds = (20, 1.0) if args.quick else (200, 5.0)
    batches = {"global_batch_size_start": 256, "global_batch_size_end": 256}
    run = build_training(256, rounds=4, witness_nodes=32, **batches)
    run.witness_all()
    full = encode_state(run.state)
    small = encode_state(build_training(3, rounds=2).state)
    by_encoding: dict[str, dict[str, float]] = {}
    async with open_local_chain(slot_ms=0) as chain:
        for members, raw in ((3, small), (256, full)):
            for one in ENCODINGS:
                found = await measure_updates(chain, raw, one, args.subscribers, updates)
                by_encoding[f"{members} members, {one}"] = found
        calls = await measure_calls(chain, full, seconds)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    return {"updates": by_encoding, "calls_per_s": calls, "peak_memory_mb": memory}


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1] in ("subscribe", "call"):
        trio.run({"subscribe": subscribe, "call": call}[sys.argv[1]], json.load(sys.stdin))
        return
    parser = build_parser(__doc__)
    parser.add_argument("--subscribers", type=int, default=32)
    args = parser.parse_args()
    result = trio.run(measure, args)
    columns = ("a run of", "updates/s", "ms of CPU", "bytes each", "MB/s")
    rows = [(name, *found.values()) for name, found in result["updates"].items()]
    print_table(f"an account of {STATE_BYTES:,} bytes to {args.subscribers} subscribers", columns, rows)
    print_table(f"calls from {CALLERS} connections", ("call", "per s"), list(result["calls_per_s"].items()))
    print(f"\npeak memory of the chain: {result['peak_memory_mb']:.0f} MB")
    finish(args, result)


if __name__ == "__main__":
    main()
