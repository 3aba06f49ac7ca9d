"""Rules on what a GPU runs in: faults, clocks held down by power or heat, the PCIe link.

Must not know how facts are measured, nor how findings are ranked.
"""

from __future__ import annotations

from collections.abc import Mapping

from observe.doctor.facts import CardFacts, Facts
from observe.doctor.finding import Evidence, Finding, beyond, confidence
from observe.doctor.rules_gpu import BUSY_SECONDS, much_busy
from observe.doctor.say import amount, known, number, percent

NEAR = 0.2  # share of the samples with the link near its limit
HELD, SLOWED = 0.1, 0.95  # share of busy samples with clocks held down, to so much of their height
POWER = {"sw_power_cap", "hw_power_brake"}
THERMAL = {"sw_thermal", "hw_thermal"}
UNNAMED = {"hw_slowdown"}  # power or heat, the driver does not say which
MOVED = "PCIe bytes a second"


def fault(facts: Facts, card: CardFacts) -> Finding | None:
    if card.fault is None:
        return None
    return Finding(
        "fault",
        f"the driver reports fault XID {card.fault.number:.0f}",
        card.gpu,
        "cause" if card.fault.new else "hint",
        confidence(card.seconds, 1.0),
        (
            number(
                "XID, " + ("new in this window" if card.fault.new else "from before this window"),
                card.fault.number,
                "DCGM_FI_DEV_XID_ERRORS",
            ),
        ),
        f"look up XID {card.fault.number:.0f} in NVIDIA's list and the kernel's log before trusting {card.gpu}",
    )


def throttled(facts: Facts, card: CardFacts) -> Finding | None:
    """Clocks held down by power or heat, and lower for it: a cap that costs next to nothing is no finding."""
    held: Mapping[str, float] = {
        reason: part for reason, part in card.held.items() if reason in POWER | THERMAL | UNNAMED and part >= HELD
    }
    if card.busy_seconds < BUSY_SECONDS or not held or (card.clock is not None and card.clock >= SLOWED):
        return None
    hot, powered = any(it in THERMAL for it in held), any(it in POWER for it in held)
    word = "heat" if hot and not powered else "power" if powered and not hot else "power or heat"
    worst = max(held.values())
    capped = card.power.watts is not None and card.power.limit is not None and card.power.watts > 0.9 * card.power.limit
    return Finding(
        "throttled",
        f"clocks held down by {word}",
        card.gpu,
        "cause",
        confidence(
            card.busy_seconds,
            beyond(worst, HELD, 0.8),
            ("clocks are lower", None if card.clock is None else True),
            ("power is at its limit", capped or None),
        ),
        known(
            *(
                percent(f"of the busy time held down: {reason}", part, f'nvml_clocks_held_down{{reason="{reason}"}}')
                for reason, part in held.items()
            ),
            None if card.clock is None else percent("of its highest clock meanwhile", card.clock, "nvml_clock_mhz"),
            None
            if card.power.hottest is None
            else number("hottest", card.power.hottest, "nvml_temperature_celsius", "°C"),
            None
            if card.power.watts is None
            else number(f"power, limit {card.power.limit or 0:.0f} W", card.power.watts, "nvml_power_watts", "W"),
        ),
        f"cool {card.gpu} better: airflow, dust, neighbours"
        if word == "heat"
        else f"raise {card.gpu}'s power limit (nvidia-smi -pl), or plan with less; look at its cooling and supply",
    )


def near_the_link(facts: Facts, card: CardFacts) -> Finding | None:
    if card.pcie.rate is None or card.pcie.near is None or card.pcie.near < NEAR:
        return None
    limit = card.pcie.limit
    return Finding(
        "pcie",
        "PCIe is near its limit",
        card.gpu,
        "cause",
        confidence(
            card.seconds * card.pcie.near,
            beyond(card.pcie.near, NEAR, 0.8),
            ("the link is known", True if card.pcie.link else None),
        ),
        known(
            percent("of the samples had the link near its limit", card.pcie.near, MOVED),
            amount("on average, the busier direction", card.pcie.rate, MOVED, a_second=True),
            None
            if limit is None
            else amount("the link carries", limit, "nvml_pcie_generation, nvml_pcie_lanes", a_second=True),
        ),
        f"move less to {card.gpu}: prepare inputs on it, send smaller types, keep KV pages there (less swap_space)",
    )


def slow_link(facts: Facts, card: CardFacts) -> Finding | None:
    """Fewer lanes, or an older generation, than both ends can, while busy."""
    link = card.pcie.link
    if (
        link is None
        or not much_busy(card)
        or (link.lanes >= link.most_lanes and link.generation >= link.most_generation)
    ):
        return None
    return Finding(
        "slow-link",
        "PCIe runs below what it can",
        card.gpu,
        "hint",
        confidence(card.busy_seconds, 0.5),
        (
            Evidence(
                f"generation {link.generation:.0f} of {link.most_generation:.0f}",
                link.generation,
                "1",
                "nvml_pcie_generation",
            ),
            Evidence(f"{link.lanes:.0f} of {link.most_lanes:.0f} lanes", link.lanes, "1", "nvml_pcie_lanes"),
        ),
        f"look at the slot, riser and firmware of {card.gpu}",
    )
