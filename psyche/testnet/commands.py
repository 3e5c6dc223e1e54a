"""The command lines of a testnet's processes, as a person would type them on several machines."""

import os
import sys
from pathlib import Path

from psyche.testnet.chain import HOST, find_client_options, get_chain_argv, get_rpc_url
from psyche.testnet.prepare import Prepared
from psyche.testnet.settings import BackendKind, TestnetSettings, get_node_name


def get_trainer_host_argv(socket: Path) -> list[str]:
    """Build the command of the process that imports torch once and forks the clients' trainers."""
    argv = [sys.executable, "-X", "faulthandler", "-m", "psyche.modeling.trainer.host"]
    return [*argv, "--socket", str(socket), "--parent", str(os.getpid())]


def get_backend_argv(prepared: Prepared, settings: TestnetSettings) -> list[str]:
    """The command of the process that keeps the run."""
    if settings.backend is BackendKind.tcp:
        return get_server_argv(prepared, settings)
    return get_chain_argv(prepared.layout, prepared.server_port, settings)


def get_server_argv(prepared: Prepared, settings: TestnetSettings) -> list[str]:
    """`psyche server run` for this run."""
    layout = prepared.layout
    argv = [sys.executable, "-m", "psyche", "server", "run", "--state", str(prepared.run.path)]
    argv += ["--server-port", str(prepared.server_port), "--bind-ip", HOST, "--state-dir", str(layout.server)]
    argv += ["--events-dir", str(layout.events), "--log", settings.log]
    for key in prepared.client_keys:
        argv += ["--allow", key.hex()]
    if prepared.data_config is not None:
        argv += ["--data-config", str(prepared.data_config)]
    if settings.write_log:
        argv += ["--write-log", str(layout.logs / "server.jsonl")]
    return argv


def get_client_argv(prepared: Prepared, settings: TestnetSettings, number: int) -> list[str]:
    """`psyche client train` for client `number`."""
    layout, name = prepared.layout, get_node_name(number)
    argv = [sys.executable, "-m", "psyche", "client", "train", "--run-id", prepared.run.run_id]
    if settings.backend is BackendKind.tcp:
        argv += ["--server-addr", f"{HOST}:{prepared.server_port}"]
    else:
        argv += find_client_options(layout, prepared.server_port, prepared.p2p_ports[number - 1], number)
    argv += ["--bind-p2p-interface", HOST, "--node-name", name]
    argv += ["--data-dir", str(layout.client(number)), "--checkpoint-dir", str(layout.checkpoints(number))]
    argv += ["--local-root", str(layout.config), "--events-dir", str(layout.events), "--log", settings.log]
    argv += ["--device", settings.device, "--threads", str(get_threads(settings))]
    argv += ["--micro-batch-size", str(settings.micro_batch_size)]
    if settings.write_distro_data:
        argv += ["--write-gradients-dir", str(layout.client(number) / "distro")]
    if settings.write_log:
        argv += ["--write-log", str(layout.logs / f"{name}.jsonl")]
    return argv


def get_threads(settings: TestnetSettings) -> int:
    """Return each client's share of this machine's cores, at least one."""
    return settings.threads or max(1, len(os.sched_getaffinity(0)) // settings.num_clients)


def get_owner_argv(prepared: Prepared, settings: TestnetSettings, command: str) -> list[str]:
    """`psyche run pause` or `resume`, with the server's own key or the owner's wallet."""
    layout, argv = prepared.layout, [sys.executable, "-m", "psyche", "run", command]
    if settings.backend is BackendKind.tcp:
        return [*argv, "--server-addr", f"{HOST}:{prepared.server_port}", "--state-dir", str(layout.server)]
    argv += ["--run-id", prepared.run.run_id, "--rpc", get_rpc_url(prepared.server_port)]
    return [*argv, "--wallet-private-key-path", str(layout.owner_wallet), "--yes"]
