"""Did a run keep gdrpy's promises of speed?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import Session
from promises import GOALS, Goal

NOT_APPLICABLE = "not applicable (simulated GPU)"
NOT_APPLICABLE_HERE = "not applicable (real GPU)"
NOT_MEASURED = "not measured"
MET = "met"
MISSED = "missed"


def check(session: Session, simulated: bool) -> list[dict[str, Any]]:
    """Every goal with its figure, which is None if the goal does not apply or was not measured."""
    found = {one.id: one.median for one in session.measurements if one.verified is not False}
    found |= {one.id: one.value for one in session.figures}
    where = {one.id: one.where for one in session.figures}
    return [
        _row(goal, found, goal.simulated == simulated) | {"where": where.get(goal.source)}
        for goal in GOALS
    ]


def _row(goal: Goal, medians: Mapping[str, float], applies: bool) -> dict[str, Any]:
    figure = goal.check(medians) if applies else None
    if figure is not None:
        verdict = MET if goal.kept(figure) else MISSED
    else:
        other = NOT_APPLICABLE_HERE if goal.simulated else NOT_APPLICABLE
        verdict = NOT_MEASURED if applies else other
    return {
        "goal": goal.words,
        "relation": ">=" if goal.at_least else "<=",
        "bound": goal.bound,
        "unit": goal.unit,
        "figure": None if figure is None else round(figure, 4),
        "verdict": verdict,
        "source": goal.source,
        "relative_to": goal.relative_to,
        "control": None if goal.control is None else medians.get(goal.control),
    }
