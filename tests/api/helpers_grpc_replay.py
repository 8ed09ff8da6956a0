"""The gRPC requests that were recorded from a real tritonserver, sent again: one function for each kind of call, the answers as text."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

FLOATS = struct.pack("<16f", *range(16))
COUNT = {"model": "repeat_decoupled", "name": "COUNT", "dtype": "INT32", "shape": (1,)}
EMPTY_FINAL = {"triton_enable_empty_final_response": True}


def infer(
    *,
    model: str = "identity",
    version: str = "",
    shape: Sequence[int] = (1, 16),
    dtype: str = "FP32",
    raw: Iterable[bytes] = (FLOATS,),
    contents: Iterable[float] | None = None,
    name: str = "INPUT0",
    outputs: Iterable[str] = (),
    parameters: dict[str, Any] | None = None,
    request_id: str = "",
) -> Any:
    request = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    tensor = request.inputs.add(name=name, datatype=dtype, shape=list(shape))
    if contents is not None:
        tensor.contents.fp32_contents.extend(contents)
    request.raw_input_contents.extend(raw)
    for output in outputs:
        request.outputs.add(name=output)
    for key, value in (parameters or {}).items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(request.parameters[key], kind, value)
    return request


def classification() -> Any:
    request = infer()
    request.outputs.add(name="OUTPUT0").parameters["classification"].int64_param = 2
    return request


def repeat(count: int, request_id: str = "", parameters: dict[str, Any] | None = None) -> Any:
    return infer(**COUNT, raw=[struct.pack("<i", count)], request_id=request_id, parameters=parameters)


UNARY: list[tuple[str, str, Any]] = [
    ("live", "ServerLive", pb.ServerLiveRequest()),
    ("ready", "ServerReady", pb.ServerReadyRequest()),
    ("meta", "ServerMetadata", pb.ServerMetadataRequest()),
    ("mready", "ModelReady", pb.ModelReadyRequest(name="identity")),
    ("mready_unknown", "ModelReady", pb.ModelReadyRequest(name="nope")),
    ("mready_empty", "ModelReady", pb.ModelReadyRequest()),
    ("mready_badver", "ModelReady", pb.ModelReadyRequest(name="identity", version="abc")),
    ("mready_ver9", "ModelReady", pb.ModelReadyRequest(name="identity", version="9")),
    ("mmeta", "ModelMetadata", pb.ModelMetadataRequest(name="identity")),
    ("mmeta_unknown", "ModelMetadata", pb.ModelMetadataRequest(name="nope")),
    ("mmeta_badver", "ModelMetadata", pb.ModelMetadataRequest(name="identity", version="abc")),
    ("mconf", "ModelConfig", pb.ModelConfigRequest(name="identity_dyn")),
    ("mconf_unknown", "ModelConfig", pb.ModelConfigRequest(name="nope")),
    ("stats", "ModelStatistics", pb.ModelStatisticsRequest(name="identity_dyn")),
    ("stats_unknown", "ModelStatistics", pb.ModelStatisticsRequest(name="nope")),
    ("infer_raw", "ModelInfer", infer(request_id="a1")),
    ("infer_contents", "ModelInfer", infer(raw=(), contents=range(16))),
    ("infer_both", "ModelInfer", infer(contents=range(16))),
    ("infer_none", "ModelInfer", infer(raw=())),
    ("infer_raw_short", "ModelInfer", infer(raw=[FLOATS[:60]])),
    ("infer_contents_short", "ModelInfer", infer(raw=(), contents=range(15))),
    ("infer_unknown", "ModelInfer", infer(model="nope")),
    ("infer_ver9", "ModelInfer", infer(version="9")),
    ("infer_badver", "ModelInfer", infer(version="abc")),
    ("infer_badname", "ModelInfer", infer(name="XX")),
    ("infer_baddtype", "ModelInfer", infer(dtype="FLOAT")),
    ("infer_wrongdtype", "ModelInfer", infer(dtype="INT32")),
    ("infer_badshape", "ModelInfer", infer(shape=(1, 8), raw=[FLOATS[:32]])),
    ("infer_bs65", "ModelInfer", infer(shape=(65, 16), raw=[FLOATS * 65])),
    ("infer_badout", "ModelInfer", infer(outputs=["NOPE"])),
    ("infer_extra_raw", "ModelInfer", infer(raw=[FLOATS, FLOATS])),
    ("infer_params", "ModelInfer", infer(parameters={"a": 1, "b": True, "c": "s", "d": 1.5})),
    ("infer_reserved", "ModelInfer", infer(parameters={"triton_x": 1})),
    ("infer_prio_str", "ModelInfer", infer(parameters={"priority": "x"})),
    ("infer_class", "ModelInfer", classification()),
    ("index", "RepositoryIndex", pb.RepositoryIndexRequest()),
    ("index_named", "RepositoryIndex", pb.RepositoryIndexRequest(repository_name="foo")),
    ("load_unknown", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="nope")),
    ("load_named_repo", "RepositoryModelLoad", pb.RepositoryModelLoadRequest(repository_name="x", model_name="identity")),
    ("unload_unknown", "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="nope")),
    ("trace", "TraceSetting", pb.TraceSettingRequest()),
    ("log", "LogSettings", pb.LogSettingsRequest()),
    ("shm", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
    ("cshm", "CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
    ("shm_reg_bad", "SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="foo", key="/nope", byte_size=64)),
    ("shm_status_unknown", "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="foo")),
    ("infer_decoupled_unary", "ModelInfer", repeat(1)),
]

STREAMS: list[tuple[str, list[Any]]] = [
    ("s_decoupled3", [repeat(3, "r1")]),
    ("s_decoupled_final", [repeat(2, "r2", EMPTY_FINAL)]),
    ("s_zero", [repeat(0, "z")]),
    ("s_zero_final", [repeat(0, "zf", EMPTY_FINAL)]),
    ("s_nondecoupled", [infer(request_id="n1"), infer(request_id="n2")]),
    ("s_nondecoupled_final", [infer(request_id="n1", parameters=EMPTY_FINAL)]),
    ("s_error_mid", [infer(request_id="ok1"), infer(model="nope", request_id="bad"), infer(name="XX", request_id="bad2"), infer(request_id="ok2")]),
]


def replay(target: str) -> Iterator[dict[str, Any]]:
    """Answers in the form in which they were recorded."""
    with grpc.insecure_channel(target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for name, method, request in UNARY:
            try:
                answer = getattr(stub, method)(request, timeout=20)
                yield {"name": name, "ok": True, "resp": str(answer).replace("\n", " ")}
            except grpc.RpcError as error:
                yield {"name": name, "ok": False, "code": error.code().name, "details": error.details()}
        for name, requests in STREAMS:
            answers = [str(answer).replace("\n", " ") for answer in stub.ModelStreamInfer(iter(requests), timeout=20)]
            yield {"name": name, "stream": answers}
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        yield {"name": "grpc.health.v1.Check", "resp": check(b"", timeout=5).hex()}
