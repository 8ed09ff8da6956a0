"""KServe requests carry who asks, for the queue that language models share fairly."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from helpers_scripted_engine import FakeEngine, fake_backend

from trivium.backends.tensor_base import Inference
from trivium.config import HttpConfig
from trivium.frontends.app import create_app
from trivium.infer import InferRequest
from trivium.metrics.instruments import Registry
from trivium.repository.manager import ModelManager
from trivium.service import InferenceService, ServiceLimits

TENSORS: dict[str, Any] = {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["abc"]}], "parameters": {"max_tokens": 2}}
TEXT: dict[str, Any] = {"text_input": "abc", "max_tokens": 2}


@pytest.mark.parametrize("is_fair", [True, False])
@pytest.mark.parametrize(("verb", "body"), [("infer", TENSORS), ("generate", TEXT), ("generate_stream", TEXT)])
async def test_requests_are_told_apart_by_the_header(monkeypatch: pytest.MonkeyPatch, verb: str, body: dict[str, Any], is_fair: bool) -> None:
    manager = ModelManager()
    manager.add(("fake",), fake_backend(FakeEngine(), Registry()))
    service = InferenceService(manager, limits=ServiceLimits(is_fair=is_fair))
    seen: list[str] = []
    infer = service.tensors.infer

    def watch(request: InferRequest, **options: Any) -> Inference:
        seen.append(request.client)
        return infer(request, **options)

    monkeypatch.setattr(service.tensors, "infer", watch)
    app = create_app(service, HttpConfig(fairness_header="X-User" if is_fair else ""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        for user in ("a", "b", "a", ""):
            answer = await client.post(f"/v2/models/fake/{verb}", json=body, headers={"x-user": user} if user else {})
            assert answer.status_code == 200
    await service.close()
    first, second, third, nobody = seen
    assert (first == third, first == second, nobody) == (True, not is_fair, "")
