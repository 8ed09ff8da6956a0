"""The whole engine in this process, without sockets: config in, tokens out."""

from __future__ import annotations

import functools
import json
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
from helpers_checkpoints import BY_NAME, checkpoint
from safetensors.torch import save_file

from trivium.config_io import build_engine_config
from trivium.engine.build import build_engine
from trivium.engine.core import EngineCore
from trivium.protocol.messages import AddRequest, EngineStats, FromEngine, Hello, Shutdown, StepOutputs, ToEngine, TokenOutput
from trivium.types import SamplingParams

_folders = tempfile.TemporaryDirectory(prefix="trivium-test-checkpoints-")


@functools.cache
def checkpoint_folder(name: str) -> str:
    """A case of `helpers_checkpoints` as a model folder."""
    folder = Path(_folders.name) / name
    folder.mkdir()
    found = checkpoint(name)
    (folder / "config.json").write_text(json.dumps(found.config))
    save_file({key: tensor.clone() for key, tensor in found.tensors.items()}, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return str(folder)


class _Script:
    """A mailbox that hands out what `InProcessEngine` puts in and stops the loop when there is nothing left to do."""

    def __init__(self) -> None:
        self.inbox: deque[ToEngine] = deque()
        self.outputs: list[TokenOutput] = []
        self.stats = EngineStats()
        self.on_outputs: Any = None

    def receive(self, *, block: bool) -> list[tuple[bytes, ToEngine]]:
        messages = [(b"test", message) for message in self.inbox]
        self.inbox.clear()
        return messages or ([(b"test", Shutdown())] if block else [])

    def send(self, client: bytes, message: FromEngine) -> None:
        if isinstance(message, StepOutputs):
            self.outputs += message.outputs
            self.stats = message.stats or self.stats
            if self.on_outputs is not None:
                self.on_outputs(message.outputs)


class InProcessEngine:
    """`name`: a case of `helpers_checkpoints`, else any model as `LLM` takes it. `engine_args` are vLLM's names.

    Small by default: 256 blocks, float32, seven rows.
    """

    def __init__(self, name: str, **engine_args: Any) -> None:
        case = BY_NAME.get(name)
        args: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 256, "max_num_seqs": 7, "num_threads": 1, "skip_tokenizer_init": True}
        if case is not None and case.max_model_len is not None:
            args["max_model_len"] = case.max_model_len
        model = name if case is None else checkpoint_folder(name)
        self.config = build_engine_config(**{**args, "model": model, **engine_args})
        self.engine = build_engine(self.config, lambda _: None)
        self.script = _Script()
        self._count = 0

    def run(self, prompts: list[list[int]], params: SamplingParams | list[SamplingParams], **fields: Any) -> list[list[int]]:
        """Token ids of each prompt's continuation."""
        outputs = self.outputs(prompts, params, **fields)
        return [[token for output in own for token in output.token_ids] for own in outputs]

    def outputs(self, prompts: list[list[int]], params: SamplingParams | list[SamplingParams], **fields: Any) -> list[list[TokenOutput]]:
        """All outputs of each prompt, in order. Afterwards every block is free again."""
        each = params if isinstance(params, list) else [params] * len(prompts)
        names: list[str] = []
        for prompt, own in zip(prompts, each, strict=True):
            names.append(f"r{self._count}")
            self._count += 1
            assert own.max_tokens is not None
            copy = msgspec.structs.replace(own)
            self.script.inbox.append(AddRequest(request_id=names[-1], prompt_token_ids=prompt, params=copy, max_tokens=own.max_tokens, **fields))
        self._turn()
        by_name: dict[str, list[TokenOutput]] = {name: [] for name in names}
        for output in self.script.outputs:
            by_name[output.request_id].append(output)
        self.script.outputs = []
        for own_outputs in by_name.values():
            assert [output.finish_reason is not None for output in own_outputs].count(True) == 1
            assert own_outputs[-1].finish_reason is not None
        self.engine.scheduler.check_integrity(thorough=True)
        assert self.engine.scheduler.pool.num_free == self.engine.scheduler.pool.num_usable
        return list(by_name.values())

    def _turn(self) -> None:
        depth = self.config.scheduler.pipeline_depth
        self.script.inbox.appendleft(Hello())
        EngineCore(self.engine.scheduler, self.engine.executor, self.script, pipeline_depth=depth, greeting=self.engine.ready).run()

    def close(self) -> None:
        self.engine.executor.close()
