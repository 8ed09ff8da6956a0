"""Which versions of a model there are, and which of them its policy serves."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from trivium.errors import InvalidRequest
from trivium.protocol.model_config import ModelConfig

MAX_VERSION: Final = 2**63 - 1

_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}")


def version_folders(model: Path) -> dict[int, Path]:
    """Folders that are versions, by number, lowest first: a positive integer without leading zeros; all others are no versions."""
    found = {int(path.name): path for path in model.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()}
    return {version: found[version] for version in sorted(found) if version <= MAX_VERSION}


def served_versions(config: ModelConfig, available: Collection[int]) -> list[int]:
    """Versions that `config.version_policy` picks, lowest first; specific ones that aren't there are left out."""
    policy = config.version_policy
    ordered = sorted(available)
    match policy.WhichOneof("policy_choice"):
        case "all":
            return ordered
        case "specific":
            wanted = set(policy.specific.versions)
            return [version for version in ordered if version in wanted]
        case _:
            number = policy.latest.num_versions or 1
            return ordered[-number:]


def parse_version(version: str) -> int | None:
    """None for an empty text: the model's default version. Raises `InvalidRequest` with Triton's words."""
    if not version:
        return None
    if not version.isascii() or not version.lstrip("+-").isdecimal():
        cause = " (details: stol)"
    elif not 0 < int(version[:20]) <= MAX_VERSION:
        cause = ""
    else:
        return int(version)
    message = f"failed to get model version from specified version string '{version}'{cause}, version should be an integral value > 0"
    raise InvalidRequest(message, param="version")
