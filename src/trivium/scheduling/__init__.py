"""The engine's decisions, free of torch: which request computes how many tokens in which step, row and blocks."""

from __future__ import annotations

from trivium.scheduling.limits import SchedulerLimits
from trivium.scheduling.scheduler import Scheduler
from trivium.scheduling.step import NewRow, StepPlan, StepResult

__all__ = ["NewRow", "Scheduler", "SchedulerLimits", "StepPlan", "StepResult"]
