"""From an SLA file to alerts: only those that its models, tiers, targets and hardware give reason for.

Must not know disks, nor who is told.
"""

from __future__ import annotations

from typing import Any

from config_gen.sla.spec import LlmModel, Spec
from observe.alert import Alert
from observe.alerts_llm import llm_alerts
from observe.alerts_machine import card_alerts, host_alerts, server_alerts
from observe.alerts_unary import unary_alerts


def alerts(spec: Spec, pace: float = 1.0) -> dict[str, list[Alert]]:
    """Alerts by group: `machine`, and one a model. `pace` multiplies every duration, for tests that cannot wait."""
    groups = {
        "machine": [
            *server_alerts(list(spec.models), pace),
            *host_alerts(pace),
            *card_alerts(spec.hardware, pace),
        ]
    }
    for name, model in spec.models.items():
        if isinstance(model, LlmModel):
            found = llm_alerts(name, model, spec.tiers, pace)
        else:
            found = unary_alerts(name, model, spec.tiers, pace)
        groups[f"model {name}"] = list(found)
    return groups


def rule_file(groups: dict[str, list[Alert]]) -> dict[str, Any]:
    """What a rule file of Prometheus holds."""
    return {
        "groups": [
            {"name": f"gapless, {name}", "rules": [alert.rule() for alert in found]} for name, found in groups.items()
        ]
    }
