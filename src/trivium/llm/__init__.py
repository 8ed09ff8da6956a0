"""`LLM`: the engine without a server, with vLLM's signatures and results.

from trivium import LLM, SamplingParams

with LLM(model="path/to/model") as llm:
    outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8))
    print(outputs[0].outputs[0].text)
"""

from __future__ import annotations

from trivium.llm.offline import LLM
from trivium.outputs import CompletionOutput, RequestMetrics, RequestOutput
from trivium.types import FinishReason, SamplingParams

__all__ = ["LLM", "CompletionOutput", "FinishReason", "RequestMetrics", "RequestOutput", "SamplingParams"]
