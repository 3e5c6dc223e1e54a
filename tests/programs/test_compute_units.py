"""What events cost on a chain: one that costs more than a transaction may use is lost, and with a tick the run."""

import pytest
from differential.backends import ProgramBackend
from differential.dear_events import UNITS, list_dear_events, measure_units


@pytest.mark.parametrize("members", [2, 256])
def test_no_event_costs_more_than_its_limit(members: int) -> None:
    backend = ProgramBackend()
    units = [(event, measure_units(backend, event)) for event in list_dear_events(members)]
    assert len(units) >= 25, "an event of every kind, and every phase of a tick"
    assert {event.name: found for event, found in units if not 0 < found <= UNITS} == {}
