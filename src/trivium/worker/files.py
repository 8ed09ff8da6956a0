"""Files of a model, by names that its configuration gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trivium.errors import ModelLoadError
from trivium.protocol.worker_messages import Setup


def model_file(setup: Setup, config: dict[str, Any], *names: str) -> Path:
    """The version's file that the configuration names, else the first of `names` that is there.

    Raises `ModelLoadError` if there is none, or if the name leads out of the version's folder.
    """
    folder = Path(setup.version_path)
    given = config.get("default_model_filename", "")
    candidates = [given] if given else list(names)
    for name in candidates:
        if not name or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelLoadError(f"file name {name!r} leads out of the model's folder")
        path = folder / name
        if path.exists():
            return path
    raise ModelLoadError(f"there is no {' or '.join(candidates)} in version folder {folder.name} of model '{setup.model}'")


def parameters_of(config: dict[str, Any], settings: dict[str, str] | None = None) -> dict[str, str]:
    """The back end's settings from the command line, overruled by the model's `parameters`."""
    own = {name: str(value.get("string_value", "")) for name, value in config.get("parameters", {}).items()}
    return {**(settings or {}), **own}


def integer(parameters: dict[str, str], name: str, default: int) -> int:
    """Raises `ModelLoadError` for what isn't one."""
    text = parameters.get(name, "")
    if text == "":
        return default
    try:
        return int(text)
    except ValueError:
        raise ModelLoadError(f"parameter '{name}' must be an integer, not {text!r}") from None


def boolean(parameters: dict[str, str], name: str, *, default: bool) -> bool:
    """Raises `ModelLoadError` for anything but true, false, 1 and 0."""
    text = parameters.get(name, "").strip().lower()
    if text not in ("", "true", "false", "1", "0"):
        raise ModelLoadError(f"parameter '{name}' must be true or false, not {text!r}")
    return text in ("true", "1") if text else default
