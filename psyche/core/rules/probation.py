"""Newcomers: slots without a credit yet are on probation, and wait after fruitless epochs (M10)."""

from psyche.core.rules.readiness import is_certified
from psyche.core.state.limits import GOOD_STREAK_ROUNDS, LONGEST_PROBATION_EPOCHS, U8_MAX, U16_MAX
from psyche.core.state.state import Client, ClientFlag, Config, Coordinator, Slot


def is_led_by_proven(state: Coordinator) -> bool:
    """Whether only proven members are electors in the epoch that forms (M10).

    A few proven members can fail together, or too many of them can lie. So after an epoch that certified nothing,
    everybody is an elector in the next one, and newcomers can prove themselves. If that epoch fails too, newcomers
    may be the cause; the two modes alternate.
    """
    return not is_certified(state) or (state.progress.epoch - state.certified.epoch) % 2 == 1


def process_proof(slot: Slot, client: Client) -> None:
    """After a credit: the slot is proven and its probation's wait ends (M10); a wait for strikes remains."""
    if client.flags & ClientFlag.PROBATION:
        client.flags &= ~ClientFlag.PROBATION
        client.good_streak = GOOD_STREAK_ROUNDS  # A1: others wait for it as at the start, whatever it has missed
    slot.proven, slot.fruitless = True, 0
    if not slot.strikes:
        slot.until = 0


def process_fruitless_epoch(slot: Slot, client: Client, next_active: int, *, is_credited: bool) -> None:
    """At the end of an epoch, let a newcomer wait if it was not ready, or got no credit although others did (M10).

    `is_credited` says whether anybody got a credit in the epoch.
    """
    if slot.proven or (client.flags & ClientFlag.READY and not is_credited):
        return
    slot.fruitless = min(slot.fruitless + 1, U8_MAX)
    process_wait(slot, next_active, slot.fruitless, LONGEST_PROBATION_EPOCHS)


def process_wait(slot: Slot, next_active: int, times: int, longest_epochs: int) -> None:
    """Let the slot wait 1, 2, 4, ... epochs the first, second, third time (H5, M10); never shorten a wait."""
    wait_epochs = min(1 << (times - 1), longest_epochs)
    slot.until = min(max(slot.until, next_active + wait_epochs), U16_MAX)


def get_founders(slots: list[Slot], joined: list[int], next_active: int, config: Config) -> list[int]:
    """Choose the joined slots that a formation takes, in slot order (M3, M10).

    Proven slots come first, with at most as many newcomers. If these are fewer than `init_min_clients`, more
    newcomers are taken, then slots that still have to wait, proven ones first.
    """
    present = [number for number in joined if slots[number].active == next_active]
    waiting = [number for number in joined if slots[number].active > next_active]
    proven = [number for number in present if slots[number].proven]
    if not proven:  # a proven slot that still waits is better than newcomers alone
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
