"""The only objects a frontend knows: `InferenceService` answers, the rest of the package are its parts."""

from trivium.service.core import (
    ChatPrompt,
    GenerateEvent,
    Generation,
    InferenceService,
    ModelInfo,
    ServiceLimits,
    Vocabulary,
)

__all__ = ["ChatPrompt", "GenerateEvent", "Generation", "InferenceService", "ModelInfo", "ServiceLimits", "Vocabulary"]
