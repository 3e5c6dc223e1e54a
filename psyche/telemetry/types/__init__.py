"""The types of events, a class for each, grouped by subject; `base.py` says what they have in common.

log.emit(types.RoundStarted(epoch=1, height=0, step=12, drain=False))

No type does anything: the client's engine, which is pure, makes them too.
"""

from psyche.telemetry.types.base import *
from psyche.telemetry.types.chain import *
from psyche.telemetry.types.evals import *
from psyche.telemetry.types.network import *
from psyche.telemetry.types.rounds import *
from psyche.telemetry.types.run import *
from psyche.telemetry.types.server import *
from psyche.telemetry.types.simulator import *
from psyche.telemetry.types.testnet import *
from psyche.telemetry.types.verification import *
from psyche.telemetry.types.waits import *
from psyche.telemetry.types.weights import *
