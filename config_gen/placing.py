"""Which model goes to which card: as few cards as asked, none fuller than it is, the busiest models apart.

Must not know settings: it gets what each model takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

USABLE = 0.9  # of a card's memory: the rest is the driver's, fragments, and what bursts need
MOST_SHARING = 3  # models that compute much on one card
MIG = ((1, 1.0, 1.0), (2, 3 / 7, 1 / 2), (3, 2 / 7, 1 / 4), (7, 1 / 7, 1 / 8))  # up to so many: compute, memory of each


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica of a model takes: bytes, and the share of a card's time that its traffic costs in all."""

    memory: int
    load: float


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


def slice_of(count: int) -> tuple[float, float]:
    """Compute and memory, as shares of a card, of each of `count` MIG instances of one size on it."""
    for most, compute, memory in MIG:
        if count <= most:
            return compute, memory
    raise DoesNotFitError(f"{count} models share a card; MIG makes at most {MIG[-1][0]} instances of it")
