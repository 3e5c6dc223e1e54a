"""The command lines of a testnet's processes, as a person would type them on several machines."""

import os
import sys
from pathlib import Path

from psyche.testnet.backends import HOST, PSYCHE, Prepared, build_backend
from psyche.testnet.settings import TestnetSettings, get_node_name


def get_trainer_host_argv(socket: Path) -> list[str]:
    argv = [sys.executable, "-X", "faulthandler", "-m", "psyche.modeling.trainer.host"]
    return [*argv, "--socket", str(socket), "--parent", str(os.getpid())]


def get_backend_argv(prepared: Prepared, settings: TestnetSettings) -> list[str]:
    return build_backend(settings).get_argv(prepared)


def get_client_argv(prepared: Prepared, settings: TestnetSettings, number: int) -> list[str]:
    layout, name = prepared.layout, get_node_name(number)
    argv = [*PSYCHE, "client", "train", "--run-id", prepared.run.run_id]
    argv += build_backend(settings).get_client_options(prepared, number)
    argv += ["--bind-p2p-interface", HOST, "--node-name", name]
    argv += ["--data-dir", str(layout.client(number)), "--checkpoint-dir", str(layout.checkpoints(number))]
    argv += ["--local-root", str(layout.config), "--events-dir", str(layout.events), "--log", settings.log]
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.num_clients)
    argv += ["--device", settings.device, "--threads", str(threads)]
    argv += ["--micro-batch-size", str(settings.micro_batch_size)]
    if settings.write_distro_data:
        argv += ["--write-gradients-dir", str(layout.client(number) / "distro")]
    if settings.write_log:
        argv += ["--write-log", str(layout.logs / f"{name}.jsonl")]
    return argv


def get_owner_argv(prepared: Prepared, settings: TestnetSettings, command: str) -> list[str]:
    return [*PSYCHE, "run", command, *build_backend(settings).get_owner_options(prepared)]
