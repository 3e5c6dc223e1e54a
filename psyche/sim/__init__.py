"""Whole runs in one process, in simulated time: the same seed gives the same events, byte for byte.

    outcome = simulate(Scenario(seed=7, clients=5, total_steps=20))
    assert not outcome.violations, outcome.describe()

The simulated code is the production code: each client is a `client.runtime.shell.Shell` around a `RoundEngine`, its
`TrainerTasks`, loader, replay store and `backends.tcp.backend.TcpBackend`; the server is `server.server.run_server`
with hub, handler, journal and recovery; the nodes are `network.memory.node.MemoryNode`s. They share with the libp2p
node everything above the streams: hello, peers, sync, blobs, the inbox, and in runs of up to 16 members the outboxes
for announcements. In larger runs, and on lines that lose or copy packets, each announcement is a packet of its own.
There is no gossip mesh. Five things are replaced, each where production has a seam for it:

| of the world | in simulation | where |
|---|---|---|
| time | trio's clock jumps to the next deadline; wall clocks are that plus an offset per machine | `runtime`, `hosts` |
| order and threads | the scheduler draws from the seed; blocking functions run in turn, without threads | `runtime` |
| links | latency, jitter, bandwidth, loss, duplication, stalls, partitions | `network.memory`, `links.tcp` |
| disks | the server's is in memory and can tear a write or fill up; the clients' are temporary folders | `disk` |
| the model | a small one with exact arithmetic, with the timings and sizes of a described machine | `trainer` |

`world` builds the machines and starts, kills and restarts them; `backends` has what keeps the run's record. `faults`
are data, carried out by the world; `byzantine` are clients whose ports lie. `invariants.shadow` reads the record as its
backend writes it, so it knows the record independently of it; `invariants.checker` checks every event against
that record. `scenarios.swarm` draws scenarios from seeds, `shrink` reduces failing ones. No package below this one
imports it. `forecast` turns a world into the output of `psyche simulate`; `analysis` reads event logs.
"""
