"""Who may run next, across models: instances share named resources (`rate_limiter` of an instance group).

There are as many copies of a resource as the most demanding instance needs, or as the server was told; on each device, unless the resource is
global. Waiting instances get their turn in the order of executions so far times priority (as with Triton, a priority of 2 runs half as often
as 1), and strictly so: one that needs much is not passed over by those that need little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

from trivium.errors import ModelLoadError
from trivium.protocol.model_config import ModelRateLimiter

GLOBAL = -2
"""The device of global resources."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    name: str
    count: int
    device: int


class Permit:
    """One instance's place at the limiter. `acquire` calls back when it may run, at once or later; `release` when it has."""

    def __init__(self, limiter: RateLimiter, resources: tuple[Resource, ...], priority: int) -> None:
        self.resources = resources
        self.priority = max(1, priority)
        self.num_executions = 0
        self.ticket = 0
        self.on_grant: Callable[[], None] | None = None
        self._limiter = limiter

    def acquire(self, on_grant: Callable[[], None]) -> None:
        self._limiter.acquire(self, on_grant)

    def release(self, *, has_run: bool = True) -> None:
        """Also gives up an `acquire` that wasn't granted yet."""
        self._limiter.release(self, has_run=has_run)

    def close(self) -> None:
        self._limiter.remove(self)


class RateLimiter:
    """One per server. `limits` are copies by (name, device), device None for any (and for global resources)."""

    def __init__(self, limits: Mapping[tuple[str, int | None], int] | None = None) -> None:
        self._limits = dict(limits or {})
        self._permits: dict[Permit, None] = {}
        self._waiting: dict[Permit, None] = {}
        self._holding: dict[Permit, None] = {}
        self._in_use: dict[tuple[str, int], int] = {}
        self._tickets = count()

    def register(self, config: ModelRateLimiter, device: int) -> Permit | None:
        """For an instance on `device` (-1: CPU); None if nothing limits it. Raises `ModelLoadError` for what could never run."""
        resources = tuple(
            Resource(name=resource.name, count=resource.count, device=GLOBAL if getattr(resource, "global") else device)
            for resource in config.resources
        )
        if not resources:
            return None
        for resource in resources:
            self._check(resource)
        permit = Permit(self, resources, config.priority)
        self._permits[permit] = None
        return permit

    def acquire(self, permit: Permit, on_grant: Callable[[], None]) -> None:
        assert permit not in self._waiting and permit not in self._holding
        permit.on_grant = on_grant
        permit.ticket = next(self._tickets)
        self._waiting[permit] = None
        self._grant()

    def release(self, permit: Permit, *, has_run: bool) -> None:
        self._waiting.pop(permit, None)
        if permit in self._holding:
            del self._holding[permit]
            permit.num_executions += has_run
            for resource in permit.resources:
                self._in_use[resource.name, resource.device] -= resource.count
        self._grant()

    def remove(self, permit: Permit) -> None:
        self.release(permit, has_run=False)
        self._permits.pop(permit, None)
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            permit = min(self._waiting, key=lambda waiting: (waiting.num_executions * waiting.priority, waiting.ticket))
            if not all(self._has_room(resource) for resource in permit.resources):
                return
            del self._waiting[permit]
            self._holding[permit] = None
            for resource in permit.resources:
                key = resource.name, resource.device
                self._in_use[key] = self._in_use.get(key, 0) + resource.count
            assert permit.on_grant is not None
            permit.on_grant()

    def _has_room(self, resource: Resource) -> bool:
        return self._in_use.get((resource.name, resource.device), 0) + resource.count <= self._available(resource)

    def _available(self, resource: Resource) -> int:
        limit = self._limit(resource)
        if limit is not None:
            return limit
        needs = (
            other.count for permit in self._permits for other in permit.resources if (other.name, other.device) == (resource.name, resource.device)
        )
        return max(needs, default=0)

    def _limit(self, resource: Resource) -> int | None:
        return self._limits.get((resource.name, resource.device), self._limits.get((resource.name, None)))

    def _check(self, resource: Resource) -> None:
        limit = self._limit(resource)
        if limit is not None and limit < resource.count:
            raise ModelLoadError(
                f'Resource count for "{resource.name}" is limited to {limit} which will prevent scheduling of one or more model instances, '
                f"the minimum required count is {resource.count}"
            )
        for permit in self._permits:
            for other in permit.resources:
                if other.name == resource.name and (other.device == GLOBAL) != (resource.device == GLOBAL):
                    raise ModelLoadError(
                        f'Resource "{resource.name}" is present as both global and device-specific resource in the model configuration.'
                    )
