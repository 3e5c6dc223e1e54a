"""Predicted memory of a training step beside what torch's MemTracker counts in a real one, by model family.

    python benchmarks/memory.py [--quick] [--device cuda] [--exchange]

The real step is that of a trainer: look-ahead, two micro-batches, compression. On a GPU a column has the most that
torch allocated there. Models have 4 layers (--quick: 2) and random weights. `--exchange` measures something else: how
much more memory the process has at most while local steps compress and apply on a CPU than it has before and after.
"""

import ctypes
import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _table import build_parser, finish, print_table
from distro_step import make_shapes, make_tensors
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoConfig, AutoModelForCausalLM

from psyche.core.encoding.plan import compute_plan
from psyche.core.state.state import Optimizer, OptimizerKind
from psyche.modeling.device import select_device
from psyche.modeling.distro.codec import decode_payload
from psyche.modeling.distro.optimizer import Distro
from psyche.modeling.local.exchange import Exchange, Part
from psyche.modeling.model import enable_checkpointing, get_parameters, get_shapes
from psyche.modeling.trainer.batch import compute_gradients
from psyche.modeling.trainer.memory import Step, predict_bytes
from psyche.wire.trainer import SentResult

OPTIMIZER = Optimizer(
    kind=OptimizerKind.DISTRO, compression_decay=0.95, compression_topk=8, compression_chunk=64, quantize_1bit=True
)
VOCABULARY, LENGTH, MICRO_BATCH = 2048, 128, 4
COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 704, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {"moe_intermediate_size": 128, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "gpt2": {
        "vocab_size": VOCABULARY, "n_embd": 256, "n_head": 4, "n_positions": 256, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    },
    "qwen3_moe": COMMON | EXPERTS | {"num_experts": 8, "head_dim": 64},
    "deepseek_v3": COMMON | EXPERTS | LATENT
    | {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    "gemma3_text": COMMON | {"head_dim": 64, "sliding_window": 32},
    "mamba2": {
        "vocab_size": VOCABULARY, "hidden_size": 256, "num_heads": 8, "head_dim": 64, "state_size": 32, "n_groups": 1,
        "chunk_size": 64,
    },
}  # fmt: skip


def count_real(config: Any, device: torch.device, *, activation_checkpointing: bool) -> int:
    """The peak that MemTracker counts in a trainer's step, in bytes."""
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(device)
    model.train()
    if activation_checkpointing:
        enable_checkpointing(model)
    parameters = get_parameters(model)
    plan = compute_plan(get_shapes(parameters), OPTIMIZER.compression_chunk, OPTIMIZER.compression_topk, one_bit=True)
    tokens = torch.randint(VOCABULARY, (2 * MICRO_BATCH, LENGTH))
    tracker = MemTracker()
    tracker.track_external(model)
    with tracker:
        tracker._mod_tracker.clear_user_hooks()  # noqa: SLF001 # they admit one pass of a model
        distro = Distro(parameters, plan, OPTIMIZER.compression_decay)
        with distro.lookahead(1e-3):
            gradients = compute_gradients(
                model, parameters, tokens, micro_batch_size=MICRO_BATCH, device=device, clip=1.0
            )
        distro.compress(gradients.tensors, 1e-3, (), in_flight=False, height=0)
    return max(snapshot["Total"] for place, snapshot in tracker.get_tracker_snapshot("peak").items() if place == device)


def measure(family: str, layers: int, device: torch.device, *, activation_checkpointing: bool) -> dict[str, Any]:
    config = AutoConfig.for_model(family, **FAMILIES[family], num_hidden_layers=layers)  # GPT-2 knows that name too
    began = time.process_time()
    parts = predict_bytes(
        Step(config, OPTIMIZER, LENGTH), device, MICRO_BATCH, activation_checkpointing=activation_checkpointing
    )
    seconds = time.process_time() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    real = count_real(config, device, activation_checkpointing=activation_checkpointing)
    allocated = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return {"parts": parts, "predicted": sum(parts.values()), "counted": real, "allocated": allocated, "cpu_s": seconds}


def read_bytes(name: str) -> int:
    """A size that Linux has of this process; memory that is free but kept for later is given back before."""
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def measure_extra_mb(call: Callable[[], object]) -> float:
    """How much more memory the process has at most during a call than before and after it, its result included."""
    gc.collect()
    before = read_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # forget the peak
    result = call()
    most = read_bytes("VmHWM")
    after = read_bytes("VmRSS")
    del result
    return (most - max(before, after)) / 1e6


def measure_exchange(name: str, shapes: dict[str, tuple[int, ...]], topk: int) -> tuple[object, ...]:
    """Rounds whose results are taken out and given back by turns, as real ones; the most of all but the first two."""
    plan = compute_plan(shapes, 64, topk, one_bit=False, scaled_bits=2)
    exchange, moves, bodies = Exchange(make_tensors(plan, 0.02), plan, 0.95), make_tensors(plan, 1e-3), [b""]

    def compress(height: int) -> None:
        bodies[0] = b""
        decided = (SentResult(height=height - 2, applied=height % 2 > 0),) if height > 1 else ()
        bodies[0] = exchange.compress(moves, decided, in_flight=True, height=height)

    compressing = [measure_extra_mb(lambda height=height: compress(height)) for height in range(6)]
    parts = [Part(decode_payload(plan, bodies[0]), 8)] * 16
    applying = measure_extra_mb(lambda: exchange.apply(parts, 1.0))
    return name, sum(math.prod(shape) for shape in shapes.values()) / 1e6, topk, max(compressing[2:]), applying


def show_exchange(is_quick: bool) -> dict[str, object]:
    models = {"21M": make_shapes(32_000, 256, 6, 688), "124M": make_shapes(25_600, 768, 12, 2_048)}
    if not is_quick:
        models["341M"] = make_shapes(25_600, 1_024, 23, 2_816)
    rows = [measure_exchange(name, shapes, topk) for name, shapes in models.items() for topk in (64, 256)]
    columns = ["model", "million parameters", "k", "compress MB", "apply 16 MB"]
    print_table("Extra memory of an exchange of local steps, chunk 64", columns, rows, "exchange memory")
    return {f"extra_mb_{row[0]}_{row[2]}": row[3:] for row in rows}


def main() -> None:
    parser = build_parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--exchange", action="store_true", help="the extra memory of an exchange of local steps")
    args = parser.parse_args()
    if args.exchange:
        finish(args, show_exchange(args.quick))
        return
    device = select_device(args.device)
    device = torch.device("cuda", 0) if device.type == "cuda" else device
    result: dict[str, dict[str, Any]] = {}
    for family in FAMILIES:
        for checkpointing in (False, True):
            found = measure(family, 2 if args.quick else 4, device, activation_checkpointing=checkpointing)
            result[f"{family}, checkpointing" if checkpointing else family] = found
            print(family, checkpointing, found, flush=True)
    rows = [
        (
            name, found["parts"]["activations"] / 1e6, found["predicted"] / 1e6, found["counted"] / 1e6,
            100 * (found["predicted"] / found["counted"] - 1), (found["allocated"] or 0) / 1e6 or "-", found["cpu_s"],
        )
        for name, found in result.items()
    ]  # fmt: skip
    columns = ("model", "activations MB", "predicted MB", "counted MB", "off %", "allocated MB", "CPU s")
    print_table(f"Memory of a step: {MICRO_BATCH} x {LENGTH} tokens on {device}", columns, rows)
    finish(args, result)


if __name__ == "__main__":
    main()
