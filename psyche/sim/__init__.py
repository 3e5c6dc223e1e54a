"""Whole runs in one process, in simulated time: the same seed gives the same events, byte for byte.

    outcome = simulate(Scenario(seed=7, clients=5, total_steps=20))
    assert not outcome.violations, outcome.describe()

What runs is what production runs: each client is a `client.runtime.shell.Shell` around a `RoundEngine`, its
`TrainerTasks`, loader, replay store and `backends.tcp.backend.TcpBackend`; the server is `server.server.run_server`
with hub, handler, journal and recovery; the nodes are `network.memory.MemoryNode`s, which share with the libp2p
node whatever stands above the streams: hello, peers, sync, blobs, the inbox, and up to 16 members the outboxes of
announcements. Above that, and on lines that lose or copy packets, announcements are packets of their own. There is
no mesh. Replaced are five things, each where production has a seam for it:

| of the world | in simulation | where |
|---|---|---|
| time | trio's clock jumps to the next deadline; wall clocks are that plus an offset per machine | `runtime`, `hosts` |
| order and threads | the scheduler draws from the seed; what would run in a thread runs in its turn | `runtime` |
| links | latency, jitter, bandwidth, loss, copies, stalls, cuts | `network.links`, `links.tcp` |
| disks | the server's in memory, torn and full on demand; the clients' folders in a temporary one | `disk` |
| the model | a small exact one, with times and sizes of a machine that is described | `trainer` |

`world` puts machines together and lets them live, die and come back. `faults` are data, carried out by the
world; `byzantine` are clients whose ports lie. `invariants.shadow` reads the server's journal as it is written and so
knows the record independently of the server; `invariants.checker` compares with it whatever happens, at every event.
`scenarios.swarm` draws scenarios from seeds, `shrink` makes failing ones small. Nothing below this package
knows of it. What `psyche simulate` makes of a world is `forecast`; what can be read from event logs is `analysis`.
"""
