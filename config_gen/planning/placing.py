"""Which model goes to which card: as few cards as asked, none fuller than it is, the busiest models apart.

Must not know settings: it gets what each model takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

USABLE = 0.9  # of a card's memory: the rest is the driver's, fragments, and what bursts need
MOST_SHARING = 3  # models that compute much on one card, and executions at once where they share it


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica of a model takes at least: bytes, and the share of a card's time that its traffic costs."""

    memory: int
    load: float


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a model is: places by name (cards, or the host), bytes that it may take of each, and whether the rate
    limiter bounds its executions there."""

    places: tuple[str, ...]
    room: int
    limited: bool = False


class DoesNotFitError(ValueError):
    """No room on so many cards; one line with the numbers."""


def place(
    needs: Mapping[str, Need], replicas: Mapping[str, int], cards: int, memory: int, apart: bool
) -> dict[str, tuple[int, ...]]:
    """Cards of each model, the largest placed first, each replica on the card with the least load that has room.

    `memory` in bytes of a card. `apart`: one model on a card. Raises DoesNotFitError.
    """
    free, load = [int(memory * USABLE)] * cards, [0.0] * cards
    count, found = [0] * cards, {}
    for name in sorted(needs, key=lambda one: (-needs[one].memory, one)):
        need, chosen = needs[name], list[int]()
        for _ in range(min(replicas[name], cards)):
            room = [
                card
                for card in range(cards)
                if card not in chosen and free[card] >= need.memory and not (apart and count[card])
            ]
            if not room:
                raise DoesNotFitError(_told(name, need, free, cards, apart))
            card = min(room, key=lambda one: (count[one] >= MOST_SHARING, load[one], one))
            free[card] -= need.memory
            load[card] += need.load / replicas[name]
            count[card] += 1
            chosen.append(card)
        found[name] = tuple(sorted(chosen))
    return found


def _told(name: str, need: Need, free: list[int], cards: int, apart: bool) -> str:
    if apart:
        return (
            f"models.{name}: has no card of its own among {cards}; sharing in-process takes one for each model: give "
            "more cards, or another sharing"
        )
    most = max(free, default=0)
    return (
        f"models.{name}: needs {need.memory / 2**30:.1f} GiB of one card, and {max(0, most) / 2**30:.1f} GiB are free "
        f"on the emptiest of {cards}"
    )
