"""Networks, built from a `ModelSpec` and filled from a checkpoint."""

from __future__ import annotations

from trivium.models.build import Model, build_model

__all__ = ["Model", "build_model"]
