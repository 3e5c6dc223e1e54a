"""Newcomers: who has not had a credit yet takes part on probation, and waits where it came to nothing (M10)."""

from psyche.core.rules.readiness import is_certified
from psyche.core.state.limits import GOOD_STREAK_ROUNDS, LONGEST_PROBATION_EPOCHS, U8_MAX, U16_MAX
from psyche.core.state.state import Client, ClientFlag, Config, Coordinator, Slot


def is_led_by_proven(state: Coordinator) -> bool:
    """Whether the proven alone elect in the epoch that forms; every other epoch after a failed one, all do (M10).

    A few proven members can fail together, or too many of them lie: an epoch that certified nothing is followed by
    one with everybody, in which newcomers may be proven. If that fails too, it may be the newcomers' doing.
    """
    return not is_certified(state) or (state.progress.epoch - state.certified.epoch) % 2 == 1


def process_proof(slot: Slot, client: Client) -> None:
    """A credit: from now on the slot is proven, and no wait of its probation is left (M10); strikes keep theirs."""
    if client.flags & ClientFlag.PROBATION:
        client.flags &= ~ClientFlag.PROBATION
        client.good_streak = GOOD_STREAK_ROUNDS  # A1: awaited as before, whatever it missed
    slot.proven, slot.fruitless = True, 0
    if not slot.strikes:
        slot.until = 0


def process_fruitless_epoch(slot: Slot, client: Client, next_active: int, *, is_credited: bool) -> None:
    """The epoch is over: a wait for a newcomer that was not ready, or had no credit where somebody had one (M10).

    `is_credited`: whether the epoch gave any credit.
    """
    if slot.proven or (client.flags & ClientFlag.READY and not is_credited):
        return
    slot.fruitless = min(slot.fruitless + 1, U8_MAX)
    process_wait(slot, next_active, slot.fruitless, LONGEST_PROBATION_EPOCHS)


def process_wait(slot: Slot, next_active: int, times: int, longest_epochs: int) -> None:
    """The slot waits 1, 2, 4, ... epochs at the first, second, third time (H5, M10); no wait shortens another."""
    wait_epochs = min(1 << (times - 1), longest_epochs)
    slot.until = min(max(slot.until, next_active + wait_epochs), U16_MAX)


def get_founders(slots: list[Slot], joined: list[int], next_active: int, config: Config) -> list[int]:
    """Those of the joined slots that a formation takes, in slot order (M3, M10).

    Proven slots come first, and newcomers are no more than they; but there are always enough for
    `init_min_clients`, out of those that still wait at last, proven ones before others.
    """
    present = [number for number in joined if slots[number].active == next_active]
    waiting = [number for number in joined if slots[number].active > next_active]
    proven = [number for number in present if slots[number].proven]
    if not proven:  # rather who is known and waits than strangers alone
        proven = [number for number in waiting if slots[number].proven]
    newcomers = [number for number in present if not slots[number].proven]
    if not proven:
        chosen = newcomers
    else:
        newcomers.sort(key=lambda number: slots[number].fruitless)
        chosen = proven + newcomers[: max(len(proven), config.init_min_clients - len(proven))]
    lacking = max(0, config.init_min_clients - len(chosen))
    others = sorted(set(waiting) - set(chosen), key=lambda n: (not slots[n].proven, slots[n].until, n))
    return sorted([*chosen, *others[:lacking]])
