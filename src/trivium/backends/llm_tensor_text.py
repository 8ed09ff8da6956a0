"""Generated text as tensors, under the names of Triton's vLLM back end."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import msgspec

from trivium.backends.llm_tensor_params import LlmTensorRequest
from trivium.backends.tensor_base import ModelSignature
from trivium.infer import DataType, InferRequest, InferResponse, Tensor
from trivium.types import LogprobsDict, PromptInfo, TokenEvent


class Texts:
    """What one prompt's choices have said since `clear`."""

    def __init__(self, num_choices: int) -> None:
        self.prompt = ""
        self.num_prompt_tokens = 0
        self.num_finished = 0
        self.texts = [""] * num_choices
        self.finish_reasons = [""] * num_choices
        self.num_tokens = [0] * num_choices
        self.logprobs: list[list[LogprobsDict]] = [[] for _ in range(num_choices)]
        self.cumulative_logprobs = [0.0] * num_choices
        """Over everything so far, as in vLLM."""

    def take_prompt(self, info: PromptInfo) -> None:
        self.prompt = info.prompt or ""
        self.num_prompt_tokens = len(info.prompt_token_ids)

    def take(self, event: TokenEvent) -> None:
        index = event.index
        self.texts[index] += event.text
        self.num_tokens[index] += len(event.token_ids)
        if event.logprobs:
            self.logprobs[index] += event.logprobs
            # The sampled token comes first in each.
            self.cumulative_logprobs[index] += sum(next(iter(candidates.values())).logprob for candidates in event.logprobs if candidates)
        if event.finish_reason is not None:
            self.num_finished += 1
            self.finish_reasons[index] = str(event.finish_reason)

    def clear(self) -> None:
        num_choices = len(self.texts)
        self.texts = [""] * num_choices
        self.num_tokens = [0] * num_choices
        self.logprobs = [[] for _ in range(num_choices)]


def response_of(
    request: InferRequest, signature: ModelSignature, parsed: LlmTensorRequest, prompts: Sequence[Texts], *, is_final: bool
) -> InferResponse:
    """One row for each prompt, one column for each choice; without a batch dimension just the values."""
    shape = (len(prompts), parsed.num_choices) if signature.max_batch_size else (len(prompts) * parsed.num_choices,)
    text_name = next(spec.name for spec in signature.outputs if spec.datatype is DataType.BYTES)
    asked = {output.name for output in request.outputs}
    texts = [(texts.prompt if parsed.includes_prompt else "") + text for texts in prompts for text in texts.texts]
    found = [_strings(text_name, texts, shape)]
    columns = {spec.name: spec for spec in signature.outputs if spec.name in parsed.wants}
    for name in columns:
        found.append(_column(name, prompts, shape))
    outputs = [tensor for tensor in found if not asked or tensor.name in asked]
    return InferResponse(model=signature.name, version=str(signature.version), id=request.id, outputs=outputs, is_final=is_final)


def _column(name: str, prompts: Sequence[Texts], shape: tuple[int, ...]) -> Tensor:
    match name:
        case "finish_reason":
            return _strings(name, [reason for texts in prompts for reason in texts.finish_reasons], shape)
        case "logprobs":
            return _strings(name, [_encode(choice) for texts in prompts for choice in texts.logprobs], shape)
        case "cumulative_logprob":
            return Tensor(name, DataType.FP32, shape, array("f", [value for texts in prompts for value in texts.cumulative_logprobs]).tobytes())
        case "num_output_tokens":
            return Tensor(name, DataType.UINT32, shape, array("I", [count for texts in prompts for count in texts.num_tokens]).tobytes())
        case _:
            assert name == "num_input_tokens"
            counts = array("I", [texts.num_prompt_tokens for texts in prompts])
            return Tensor(name, DataType.UINT32, (len(prompts), 1) if len(shape) > 1 else (len(prompts),), counts.tobytes())


def _encode(logprobs: list[LogprobsDict]) -> str:
    return msgspec.json.encode([{str(token): value for token, value in candidates.items()} for candidates in logprobs]).decode()


def _strings(name: str, values: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    encoded = [value.encode("utf-8", "surrogatepass") for value in values]
    return Tensor(name, DataType.BYTES, shape, b"".join([part for value in encoded for part in (struct.pack("<I", len(value)), value)]))
