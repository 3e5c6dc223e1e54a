"""The kinds of events, a class for each, grouped by subject; `base.py` says what they have in common.

log.emit(kinds.RoundStarted(epoch=1, height=0, step=12, drain=False))

No kind does anything: the client's engine, which is pure, makes them too.
"""

from psyche.telemetry.kinds.base import *
from psyche.telemetry.kinds.chain import *
from psyche.telemetry.kinds.network import *
from psyche.telemetry.kinds.rounds import *
from psyche.telemetry.kinds.run import *
from psyche.telemetry.kinds.server import *
from psyche.telemetry.kinds.simulator import *
from psyche.telemetry.kinds.testnet import *
from psyche.telemetry.kinds.waits import *
from psyche.telemetry.kinds.wallet import *
from psyche.telemetry.kinds.weights import *
