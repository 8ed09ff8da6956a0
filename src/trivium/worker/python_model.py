"""Triton's Python back end: a `model.py` with a class `TritonPythonModel`, one process an instance."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any

from trivium.errors import InternalError, ModelLoadError, TriviumError
from trivium.protocol.worker_messages import Batch, BatchDone, InstanceSetup, Response, Setup, WireResponse
from trivium.worker.link import Link
from trivium.worker.pb import calls, utils
from trivium.worker.pb.config import ModelConfig, using_decoupled_model_transaction_policy
from trivium.worker.pb.errors import unhandled
from trivium.worker.pb.request import InferenceRequest
from trivium.worker.pb.responses import InferenceResponse
from trivium.worker.runtime import Instance

logger = logging.getLogger(__name__)

CLASS_NAME = "TritonPythonModel"


def load(setup: Setup) -> PythonModel:
    """Raises `ModelLoadError` for whatever goes wrong in the model's own code."""
    return PythonModel(setup)


class PythonModel:
    """See `runtime.Model`. The code is imported once the instance, of which there is one, has its link."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.config_json = setup.config_json

    def create_instance(self, setup: InstanceSetup, link: Link) -> Instance:
        config: dict[str, Any] = json.loads(self.config_json)
        calls.set_link(link)
        root = Path(self.setup.model_path).parent
        try:
            model_class = _import(Path(self.setup.version_path), config.get("default_model_filename") or "model.py")
            config = self._complete(model_class, config)
            self.config_json = json.dumps(config)
            model = model_class()
            if hasattr(model, "initialize"):
                model.initialize(self._arguments(setup))
        except TriviumError:
            raise
        except Exception as error:
            raise ModelLoadError(f"Internal: {unhandled(error, root)}") from None
        if not hasattr(model, "execute"):
            raise ModelLoadError(f"class {CLASS_NAME} has no method 'execute'")
        return PythonInstance(model, setup.name, self.setup, config, link)

    def _complete(self, model_class: Any, config: dict[str, Any]) -> dict[str, Any]:
        complete = getattr(model_class, "auto_complete_config", None)
        if not self.setup.auto_complete or complete is None:
            return config
        found = complete(ModelConfig(config))
        if not isinstance(found, ModelConfig):
            raise ModelLoadError("auto_complete_config must return the ModelConfig it was given")
        return found.as_dict()

    def _arguments(self, setup: InstanceSetup) -> dict[str, str]:
        return {
            "model_config": self.config_json,
            "model_instance_kind": setup.kind,
            "model_instance_name": setup.name,
            "model_instance_device_id": str(setup.device),
            "model_repository": self.setup.model_path,
            "model_version": str(self.setup.version),
            "model_name": self.setup.model,
        }


def _import(folder: Path, file_name: str) -> Any:
    path = folder / file_name
    if not path.is_file():
        raise ModelLoadError(f"there is no {file_name} in version folder {folder.name}")
    sys.modules["triton_python_backend_utils"] = utils
    sys.modules["c_python_backend_utils"] = utils
    utils.set_model_dir(str(folder))
    for place in (str(folder.parent), str(folder)):
        sys.path.insert(0, place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    model_class = getattr(module, CLASS_NAME, None)
    if model_class is None:
        raise ModelLoadError(f"{file_name} has no class {CLASS_NAME}")
    return model_class


class _Slot:
    """Sink of a request whose one response goes with its batch."""

    def __init__(self, link: Link, key: int, batch: _Slots) -> None:
        self.response: WireResponse | None = None
        self._link = link
        self._key = key
        self._batch = batch

    def put(self, response: WireResponse) -> None:
        if response.is_null:
            if self.response is None:
                self.response = WireResponse(slug=InternalError.slug, message="the model sent no response before the final flag")
        elif self.response is None:
            self.response = response
        else:
            self.response = WireResponse(slug=InternalError.slug, message="the model sent more than one response, but it is not decoupled")
        if response.is_final:
            self.response.is_final = True
            self._batch.end_one()

    def is_cancelled(self) -> bool:
        self._link.poll()
        return self._key in self._link.cancelled


class _Slots:
    """The requests of a batch that are answered through senders; `wait` returns when all are."""

    def __init__(self) -> None:
        self._num_ended = 0
        self._changed = threading.Condition()

    def end_one(self) -> None:
        with self._changed:
            self._num_ended += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._num_ended >= count)


class _Stream:
    """Sink of a request of a decoupled model: each response is a message of its own."""

    def __init__(self, link: Link, key: int) -> None:
        self.has_ended = False
        self._link = link
        self._key = key

    def put(self, response: WireResponse) -> None:
        if not self.has_ended:
            self.has_ended = response.is_final
            self._link.send(Response(self._key, response))
            if self.has_ended:
                self._link.cancelled.discard(self._key)

    def is_cancelled(self) -> bool:
        self._link.poll()
        return self._key in self._link.cancelled


class PythonInstance:
    """See `runtime.Instance`."""

    def __init__(self, model: Any, name: str, setup: Setup, config: dict[str, Any], link: Link) -> None:
        self._model = model
        self._execute = model.execute
        self._name = name
        self._setup = setup
        self._version = str(setup.version)
        self._link = link
        self._root = Path(setup.model_path).parent
        self._outputs = tuple(output["name"] for output in config.get("output", []))
        self._is_decoupled = using_decoupled_model_transaction_policy(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        if inspect.iscoroutinefunction(model.execute):
            self._start_loop()

    def run(self, batch: Batch) -> BatchDone:
        return self._run_decoupled(batch) if self._is_decoupled else self._run_whole(batch)

    def close(self) -> None:
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except Exception:
                logger.exception("finalize() of model '%s' failed", self._setup.model)

    # -- one response a request ---------------------------------------------------------------------------------------------------

    def _run_whole(self, batch: Batch) -> BatchDone:
        link, key = self._link, batch.first_key
        slots = _Slots()
        sinks = [_Slot(link, key + index, slots) for index in range(len(batch.requests))]
        requests = [
            InferenceRequest._from_wire(wire, link, self._setup.model, self._version, self._outputs, sink)
            for wire, sink in zip(batch.requests, sinks, strict=True)
        ]
        responses: list[WireResponse | None]
        begin_ns = time.monotonic_ns()
        try:
            answers = self._execute(requests)
            if inspect.iscoroutine(answers):
                answers = self._finish(answers)
            if answers is None and all(request._sender is not None for request in requests):
                slots.wait(len(requests))
                answers = [None] * len(requests)
            end_ns = time.monotonic_ns()
            responses = self._collect(requests, sinks, answers)
        except Exception as error:
            end_ns = time.monotonic_ns()
            failure = self._failure(error)
            responses = [failure for _ in requests]
        if link.cancelled:
            link.cancelled = {later for later in link.cancelled if later >= key + len(requests)}
        return BatchDone(key, responses, begin_ns, end_ns)

    def _collect(self, requests: list[InferenceRequest], sinks: list[_Slot], answers: Any) -> list[WireResponse | None]:
        if not isinstance(answers, list | tuple):
            raise _WrongAnswer(f"Expected a list in the execute return, found type '{type(answers).__name__}'.")
        if len(answers) != len(requests):
            raise _WrongAnswer(
                f"Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
                f"InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(answers)}\n"
            )
        return [self._answer(request, sink, answer) for request, sink, answer in zip(requests, sinks, answers, strict=True)]

    def _answer(self, request: InferenceRequest, sink: _Slot, answer: Any) -> WireResponse:
        if isinstance(answer, InferenceResponse):
            return answer._to_wire(self._link, request._wanted())
        if request._is_rescheduled and answer is None:
            return WireResponse(is_rescheduled=True)
        if sink.response is not None:
            return sink.response
        if answer is None:
            raise _WrongAnswer("Expected an 'InferenceResponse' object in the execute function return list, found type 'NoneType'.")
        raise _WrongAnswer(f"Expected an 'InferenceResponse' object in the execute function return list, found type '{type(answer).__name__}'.")

    def _failure(self, error: BaseException) -> WireResponse:
        what = str(error) if isinstance(error, _WrongAnswer) else unhandled(error, self._root)
        return WireResponse(slug=InternalError.slug, message=f"Failed to process the request(s) for model '{self._name}', message: {what}")

    # -- any number of responses --------------------------------------------------------------------------------------------------

    def _run_decoupled(self, batch: Batch) -> BatchDone:
        link, key = self._link, batch.first_key
        sinks = [_Stream(link, key + index) for index in range(len(batch.requests))]
        requests = [
            InferenceRequest._from_wire(wire, link, self._setup.model, self._version, self._outputs, sink)
            for wire, sink in zip(batch.requests, sinks, strict=True)
        ]
        begin_ns = time.monotonic_ns()
        try:
            answers = self._execute(requests)
            if inspect.iscoroutine(answers):
                self._start(answers, requests, sinks)
            elif answers is not None:
                raise _WrongAnswer(f"Python model '{self._name}' is using the decoupled mode and the execute function must return None.")
            else:
                self._end_rescheduled(requests, sinks)
        except Exception as error:
            self._fail_rest(sinks, error)
        return BatchDone(key, [], begin_ns, time.monotonic_ns())

    def _end_rescheduled(self, requests: list[InferenceRequest], sinks: list[_Stream]) -> None:
        for request, sink in zip(requests, sinks, strict=True):
            if request._is_rescheduled:
                sink.put(WireResponse(is_rescheduled=True))

    def _fail_rest(self, sinks: list[_Stream], error: BaseException) -> None:
        failure = self._failure(error)
        for sink in sinks:
            sink.put(failure)

    # -- models whose execute is a coroutine --------------------------------------------------------------------------------------

    def _start_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="model-loop", daemon=True).start()
        self._link.read_in_background()

    def _finish(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._loop is None:
            self._start_loop()
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _start(self, coroutine: Coroutine[Any, Any, Any], requests: list[InferenceRequest], sinks: list[_Stream]) -> None:
        """It goes on beside those of other batches."""
        if self._loop is None:
            self._start_loop()
        assert self._loop is not None

        async def run() -> None:
            try:
                await coroutine
                self._end_rescheduled(requests, sinks)
            except Exception as error:
                self._fail_rest(sinks, error)

        asyncio.run_coroutine_threadsafe(run(), self._loop)


class _WrongAnswer(Exception):
    """`execute` returned something else than what it should."""
