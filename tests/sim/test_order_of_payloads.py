"""The small model's trainer: what it holds says what was applied, and in which order."""

from typing import Any

import pytest
from msgspec.structs import replace
from sim_kit import build

from psyche.sim.trainer import SimTrainer
from psyche.sim.world import simulate
from psyche.wire.trainer import ApplyReply, ApplyRequest


def test_who_applies_the_right_payloads_in_another_order_holds_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    apply, wrong = SimTrainer.apply, list[Any]()

    async def apply_backwards(self: SimTrainer, request: ApplyRequest) -> ApplyReply:
        wrong.append(self)
        if self is wrong[0]:  # one of all
            request = replace(request, payloads=request.payloads[::-1])
        return await apply(self, request)

    monkeypatch.setattr(SimTrainer, "apply", apply_backwards)
    outcome = simulate(build(1, clients=4))
    assert any("I1" in str(violation) for violation in outcome.violations), outcome.describe()
