"""`POST /v2/models/{model}[/versions/{version}]/infer`: parse, hand to the service, render when the response is delivered. No task, no await."""

from __future__ import annotations

import logging
from typing import Final

from trivium.backends.tensor_base import Inference
from trivium.config import HttpConfig
from trivium.errors import TriviumError
from trivium.frontends.asgi import Receive, Scope, Send
from trivium.frontends.clients import client_of
from trivium.frontends.errors import as_trivium_error
from trivium.frontends.exchange import Exchange, run_exchange
from trivium.frontends.kserve.compression import compress, decompress
from trivium.frontends.kserve.errors import error_body, headers_of, status_of
from trivium.frontends.kserve.infer_request import InferParser, OutputForms
from trivium.frontends.kserve.infer_response import no_answer, render, with_classes
from trivium.frontends.kserve.model_paths import MODELS, ModelPaths
from trivium.frontends.kserve.trace_writer import TraceWriter
from trivium.frontends.limits import read_body
from trivium.infer import InferRequest, InferResponse
from trivium.service.tensors import TensorService

logger = logging.getLogger(__name__)

JSON_LENGTH: Final = b"inference-header-content-length"
DECOUPLED: Final = "HTTP end point doesn't support models with decoupled transaction policy"
_SUFFIX: Final = "/infer"


class InferRoute:
    """An ASGI endpoint, and the handler of exchanges behind it."""

    def __init__(self, tensors: TensorService, parser: InferParser, traces: TraceWriter, paths: ModelPaths, config: HttpConfig) -> None:
        self._tensors = tensors
        self._traces = traces
        self._parser = parser
        self._paths = paths
        self._config = config
        self._max_bytes = config.max_tensor_bytes
        self._is_fair = bool(config.fairness_header)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(scope, receive, max_bytes=self._max_bytes, timeout_s=self._config.body_timeout_s, allows_compression=True)
        await run_exchange(self.start, scope, scope["path"], body, receive, send)

    def start(self, exchange: Exchange) -> None:
        """Never raises: what is wrong is answered."""
        answer = _Answer(exchange)
        try:
            model, version = self._model_of(exchange.path)
            json_length = encoding = None
            for name, value in exchange.headers:
                if name == JSON_LENGTH:
                    json_length = value
                elif name == b"content-encoding":
                    encoding = value
                elif name == b"accept-encoding":
                    answer.accepted = value
            body = exchange.body if encoding is None else decompress(exchange.body, encoding, max_bytes=self._max_bytes)
            request, answer.forms = self._parser.parse(model, version, body, json_length)
            for output in request.outputs:
                if output.class_count:
                    answer.expect_classes(request, self._tensors)
                    break
            if self._is_fair:
                request.client = client_of({"headers": exchange.headers}, self._config)
            inference = self._tensors.infer(request, decoupled_refusal=DECOUPLED)
            if self._traces.is_on:
                self._traces.watch(request, inference)
        except Exception as error:
            answer.fail(as_trivium_error(error))
            return
        exchange.on_leave(inference.cancel)
        answer.wait_for(inference)

    def _model_of(self, path: str) -> tuple[str, str]:
        """Model and version (empty: any) of a decoded path that ends with `/infer`."""
        return self._paths.split_name(path[path.index(MODELS) + len(MODELS) : len(path) - len(_SUFFIX)])


class _Answer:
    """What is needed until the model has answered."""

    __slots__ = ("_exchange", "_inference", "_is_given", "_request", "_tensors", "accepted", "forms")

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._inference: Inference | None = None
        self._request: InferRequest | None = None
        self._tensors: TensorService | None = None
        self._is_given = False
        self.forms = OutputForms()
        self.accepted: bytes | None = None

    def expect_classes(self, request: InferRequest, tensors: TensorService) -> None:
        self._request, self._tensors = request, tensors

    def wait_for(self, inference: Inference) -> None:
        self._inference = inference
        inference.deliver_to(self.give, self.fail)

    def give(self, response: InferResponse) -> None:
        if self._is_given:
            return
        if response.is_null:
            self.fail(no_answer(response.model))
            return
        try:
            if self._request is not None and self._tensors is not None:
                signature = self._tensors.signature(response.model, response.version)
                response = with_classes(response, self._request, signature.outputs, batches=signature.max_batch_size > 0)
            body, content_type, headers = render(response, self.forms)
            if self.accepted is not None:
                body, encoding = compress(body, self.accepted)
                headers = [*headers, *encoding]
        except Exception as error:
            self.fail(as_trivium_error(error))
            return
        self._is_given = True
        self._exchange.respond(200, body, content_type=content_type, headers=headers)

    def fail(self, error: TriviumError) -> None:
        if self._is_given:
            return
        self._is_given = True
        self._exchange.respond(status_of(error), error_body(error), headers=headers_of(error))
