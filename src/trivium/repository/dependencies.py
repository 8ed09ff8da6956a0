"""Which model needs which: ensembles and what they are made of. Cycles are found before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from trivium.repository.plan import ModelPlan
from trivium.repository.validate_ensemble import components


def needs(plan: ModelPlan) -> dict[str, set[int]]:
    """Models that `plan` calls, and the versions it asks for (-1: the latest)."""
    return components(plan.config) if plan.is_ensemble else {}


def find_cycle(name: str, plans: Mapping[str, ModelPlan]) -> list[str]:
    """The first way from `name` that leads back to a model on it, as names with the same first and last; empty: there is none."""
    way: list[str] = []
    done: set[str] = set()

    def visit(model: str) -> list[str]:
        if model in way:
            return [*way[way.index(model) :], model]
        if model in done or model not in plans:
            return []
        way.append(model)
        for needed in needs(plans[model]):
            found = visit(needed)
            if found:
                return found
        done.add(way.pop())
        return []

    return visit(name)


def dependents(name: str, plans: Mapping[str, ModelPlan]) -> list[str]:
    """Ensembles that need `name`, directly or through another one; those nearer to it first."""
    found: list[str] = []
    layer = [name]
    while layer:
        layer = [other for other in sorted(plans) if other not in found and other != name and any(model in needs(plans[other]) for model in layer)]
        found += layer
    return found
