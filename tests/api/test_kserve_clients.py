"""The official clients (tritonclient: HTTP, gRPC, and both asyncio ones) against a real server process: every call they have."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio
from helpers_kserve import KserveProcess
from tritonclient.utils import InferenceServerException, shared_memory

MODULES = {"http": triton_http, "grpc": triton_grpc}
DTYPES: dict[str, Any] = {
    "BOOL": bool,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}


@pytest.fixture(scope="module")
def server() -> Iterator[KserveProcess]:
    process = KserveProcess(grpc={"trace_file": "/dev/null"})
    try:
        yield process
    finally:
        assert process.stop() == 0


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: KserveProcess) -> Iterator[Any]:
    with MODULES[request.param].InferenceServerClient(getattr(server, request.param)) as made:
        made.kind = request.param
        yield made


def _input(client: Any, array: np.ndarray, name: str = "IN", datatype: str | None = None, **options: Any) -> Any:
    module = MODULES[client.kind]
    tensor = module.InferInput(name, list(array.shape), datatype or triton_http.np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, **options)
    return tensor


def _sixteen(rows: int = 1) -> np.ndarray:
    return np.arange(16 * rows, dtype=np.float32).reshape(rows, 16)


# -- what is there ----------------------------------------------------------------------------------------------------------------


def _fields(client: Any, message: Any) -> dict[str, Any]:
    """HTTP clients give dicts, gRPC ones messages."""
    return message if client.kind == "http" else {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("identity") and client.is_model_ready("identity", "1")
    assert not client.is_model_ready("nope")
    assert not client.is_model_ready("identity", "9")
    assert _fields(client, client.get_server_metadata())["name"] == "trivium"
    metadata = _fields(client, client.get_model_metadata("identity"))
    assert (metadata["name"], list(metadata["versions"])) == ("identity", ["1"])


def test_model_config_says_numbers_as_numbers(client: Any) -> None:
    config = _fields(client, client.get_model_config("identity_dyn"))
    config = config if client.kind == "http" else _fields(client, config["config"])
    assert (config["name"], config["max_batch_size"]) == ("identity_dyn", 64)


def test_statistics_count_what_was_asked(client: Any) -> None:
    def count() -> tuple[int, int]:
        stats = client.get_inference_statistics("fixed2ms", "1")
        one = (stats["model_stats"] if client.kind == "http" else stats.model_stats)[0]
        fields = _fields(client, one)
        return fields["inference_count"], fields["execution_count"]

    before = count()
    for _ in range(3):
        client.infer("fixed2ms", [_input(client, _sixteen(rows=2), "INPUT0")])
    after = count()
    assert (after[0] - before[0], after[1] - before[1]) == (6, 3)


# -- inference --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", DTYPES)
def test_each_type_comes_back_as_it_went(client: Any, datatype: str) -> None:
    values = np.array([0, 1, 1, 0, 1], dtype=DTYPES[datatype])
    result = client.infer(f"echo_{datatype.lower()}", [_input(client, values)])
    np.testing.assert_array_equal(result.as_numpy("OUT"), values)


@pytest.mark.parametrize("datatype", [datatype for datatype in DTYPES if datatype != "FP16"])
def test_each_type_comes_back_through_json(server: KserveProcess, datatype: str) -> None:
    values = np.array([0, 1, 1, 0, 1], dtype=DTYPES[datatype])
    with triton_http.InferenceServerClient(server.http) as client:
        tensor = triton_http.InferInput("IN", [5], datatype)
        tensor.set_data_from_numpy(values, binary_data=False)
        result = client.infer(f"echo_{datatype.lower()}", [tensor], outputs=[triton_http.InferRequestedOutput("OUT", binary_data=False)])
        np.testing.assert_array_equal(result.as_numpy("OUT"), values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e-45, 3.4e38])
def test_unusual_floats_come_back_through_json(server: KserveProcess, value: float) -> None:
    with triton_http.InferenceServerClient(server.http) as client:
        tensor = triton_http.InferInput("IN", [2], "FP32")
        values = np.array([value, 1], dtype=np.float32)
        tensor.set_data_from_numpy(values, binary_data=False)
        result = client.infer("echo_fp32", [tensor], outputs=[triton_http.InferRequestedOutput("OUT", binary_data=False)])
        np.testing.assert_array_equal(result.as_numpy("OUT").astype(np.float32), values)


def test_strings_come_back_as_they_went(client: Any) -> None:
    values = np.array([b"", b"text", "grün".encode(), b"\x00\xff" * 40], dtype=np.object_)
    result = client.infer("echo_string", [_input(client, values)])
    assert list(result.as_numpy("OUT")) == list(values)


def test_bfloat16_goes_as_bytes(client: Any) -> None:
    values = np.array([0.5, -2, 3], dtype=ml_dtypes.bfloat16)
    result = client.infer("echo_bf16", [_input(client, values, datatype="BF16")])
    np.testing.assert_array_equal(result.as_numpy("OUT"), values)


def test_empty_tensors_and_large_ones_travel(client: Any) -> None:
    for size in (0, 1, 3_000_000):
        values = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(client.infer("echo_fp32", [_input(client, values)]).as_numpy("OUT"), values)


def test_request_id_and_parameters_reach_the_model(client: Any) -> None:
    parameters = {"number": 3, "flag": True, "text": "x"}
    result = client.infer("params", [_input(client, np.zeros(1, np.float32))], request_id="r1", parameters=parameters)
    response = result.get_response()
    assert (response["id"] if client.kind == "http" else response.id) == "r1"
    assert result.as_numpy("OUT")[0] == b"flag=True;number=3;text='x'"


def test_classes_have_their_labels(client: Any) -> None:
    output = MODULES[client.kind].InferRequestedOutput("OUT", class_count=2)
    result = client.infer("labelled", [_input(client, np.array([[1, 5, 3], [9, 7, 8]], dtype=np.float32))], outputs=[output])
    assert result.as_numpy("OUT").tolist() == [[b"5.000000:1:dog", b"3.000000:2:bird"], [b"9.000000:0:cat", b"8.000000:2:bird"]]


def test_sequences_keep_their_state(client: Any) -> None:
    for sequence in ({"http": 71, "grpc": 72}[client.kind], f"text-{client.kind}"):
        totals = [
            client.infer(
                "accumulate",
                [_input(client, np.array([[value]], dtype=np.float32))],
                sequence_id=sequence,
                sequence_start=value == 1,
                sequence_end=value == 3,
            )
            .as_numpy("OUT")
            .item()
            for value in (1, 2, 3)
        ]
        assert totals == [1, 3, 6]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_bodies_may_be_compressed(client: Any, algorithm: str) -> None:
    if client.kind == "http":
        options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    else:
        options = {"compression_algorithm": algorithm}
    result = client.infer("identity", [_input(client, _sixteen(), "INPUT0")], **options)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), _sixteen())


def test_requests_of_one_client_run_side_by_side(client: Any) -> None:
    if client.kind == "http":
        with triton_http.InferenceServerClient(client._parsed_url.netloc, concurrency=4) as parallel:
            parallel.kind = "http"
            waiting = [parallel.async_infer("identity_dyn", [_input(parallel, _sixteen(), "INPUT0")]) for _ in range(8)]
            results = [each.get_result() for each in waiting]
    else:
        answers: queue.Queue[Any] = queue.Queue()
        for _ in range(8):
            client.async_infer("identity_dyn", [_input(client, _sixteen(), "INPUT0")], callback=lambda result, error: answers.put(error or result))
        results = [answers.get(timeout=10) for _ in range(8)]
    for result in results:
        np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), _sixteen())


@pytest.mark.parametrize(
    ("model", "value", "status", "text"),
    [
        ("failing", -1.0, ("400", "StatusCode.INVALID_ARGUMENT"), "negative input"),
        ("failing", 1.0, ("500", "StatusCode.INTERNAL"), "kaboom"),
        ("nope", 1.0, ("404", "StatusCode.NOT_FOUND"), "Request for unknown model: 'nope' is not found"),
    ],
)
def test_errors_carry_their_code_and_text(client: Any, model: str, value: float, status: tuple[str, str], text: str) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer(model, [_input(client, np.array([value], dtype=np.float32))])
    assert raised.value.status() == status[client.kind == "grpc"]
    assert text in raised.value.message()


# -- decoupled models -------------------------------------------------------------------------------------------------------------


def _stream(server: KserveProcess, requests: list[dict[str, Any]], num_answers: int) -> list[tuple[Any, Any]]:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for request in requests:
            client.async_stream_infer(**request)
        found = [answers.get(timeout=10) for _ in range(num_answers)]
        client.stop_stream()
    assert answers.empty()
    return found


def _count(value: int) -> Any:
    tensor = triton_grpc.InferInput("COUNT", [1], "INT32")
    tensor.set_data_from_numpy(np.array([value], dtype=np.int32))
    return tensor


def test_a_decoupled_model_streams_and_says_when_it_ends(server: KserveProcess) -> None:
    requests = [{"model_name": "repeat_decoupled", "inputs": [_count(3)], "request_id": "r", "enable_empty_final_response": True}]
    answers = _stream(server, requests, 4)
    assert all(error is None for _, error in answers)
    finals = [result.get_response().parameters["triton_final_response"].bool_param for result, _ in answers]
    assert finals == [False, False, False, True]
    assert [result.as_numpy("text_output")[0] for result, _ in answers[:3]] == [b"tok0 ", b"tok1 ", b"tok2 "]


def test_an_error_does_not_end_a_stream(server: KserveProcess) -> None:
    requests = [
        {"model_name": "nope", "inputs": [_count(1)], "request_id": "bad"},
        {"model_name": "repeat_decoupled", "inputs": [_count(1)], "request_id": "good"},
    ]
    answers = _stream(server, requests, 2)
    assert {str(error) if error else result.as_numpy("text_output")[0] for result, error in answers} >= {b"tok0 "}
    assert sum(error is not None for _, error in answers) == 1


def test_a_cancelled_request_stops_being_computed(server: KserveProcess) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with triton_grpc.InferenceServerClient(server.grpc) as client:
        client.kind = "grpc"
        call = client.async_infer("slow", [_input(client, np.zeros(1, np.float32))], callback=lambda result, error: answers.put(error))
        call.cancel()
        assert answers.get(timeout=10) is not None
        with pytest.raises(InferenceServerException, match="Deadline"):
            client.infer("slow", [_input(client, np.zeros(1, np.float32))], client_timeout=0.2)
        # The model has one instance and needs 10 s for what nobody cancels: it is free again.
        stats = client.get_inference_statistics("slow").model_stats[0]
        assert stats.inference_stats.success.count == 0


# -- repository, shared memory, settings ------------------------------------------------------------------------------------------


def test_models_are_unloaded_and_loaded_again(client: Any) -> None:
    client.unload_model("echo_int8")
    assert not client.is_model_ready("echo_int8")
    index = client.get_model_repository_index()
    states = {entry["name"]: entry.get("state") for entry in index} if client.kind == "http" else {entry.name: entry.state for entry in index.models}
    assert states["echo_int8"] in ("UNAVAILABLE", "UNLOADING")
    client.load_model("echo_int8")
    assert client.is_model_ready("echo_int8")


def test_a_load_may_bring_its_configuration(client: Any) -> None:
    config = '{"backend": "python", "max_batch_size": 2, "input": [{"name": "IN", "data_type": "TYPE_INT8", "dims": [4]}],'
    config += ' "output": [{"name": "OUT", "data_type": "TYPE_INT8", "dims": [4]}]}'
    client.load_model("echo_uint8", config=config)
    try:
        values = np.array([[1, 2, 3, 4]], dtype=np.int8)
        np.testing.assert_array_equal(client.infer("echo_uint8", [_input(client, values)]).as_numpy("OUT"), values)
    finally:
        client.load_model("echo_uint8")


def test_tensors_travel_in_shared_memory(client: Any) -> None:
    module = MODULES[client.kind]
    values = _sixteen()
    client.unregister_system_shared_memory()
    given = shared_memory.create_shared_memory_region("given", f"/trivium_in_{client.kind}", values.nbytes)
    taken = shared_memory.create_shared_memory_region("taken", f"/trivium_out_{client.kind}", values.nbytes)
    try:
        shared_memory.set_shared_memory_region(given, [values])
        client.register_system_shared_memory("given", f"/trivium_in_{client.kind}", values.nbytes)
        client.register_system_shared_memory("taken", f"/trivium_out_{client.kind}", values.nbytes)
        status = client.get_system_shared_memory_status()
        assert len(status if client.kind == "http" else status.regions) == 2
        tensor = module.InferInput("INPUT0", [1, 16], "FP32")
        tensor.set_shared_memory("given", values.nbytes)
        output = module.InferRequestedOutput("OUTPUT0")
        output.set_shared_memory("taken", values.nbytes)
        client.infer("identity", [tensor], outputs=[output])
        np.testing.assert_array_equal(shared_memory.get_contents_as_numpy(taken, np.float32, [1, 16]), values)
        client.unregister_system_shared_memory("given")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'given'"):
            client.infer("identity", [tensor], outputs=[output])
    finally:
        client.unregister_system_shared_memory()
        shared_memory.destroy_shared_memory_region(given)
        shared_memory.destroy_shared_memory_region(taken)


def test_cuda_shared_memory_is_refused_by_name(client: Any) -> None:
    status = client.get_cuda_shared_memory_status()
    assert len(status if client.kind == "http" else status.regions) == 0
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not supported") as raised:
        client.register_cuda_shared_memory("gpu", b"AAAA", 0, 64)
    assert raised.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
    client.unregister_cuda_shared_memory()


def test_trace_and_log_settings_are_read_and_changed(client: Any) -> None:
    settings = client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"], "trace_rate": "5"})
    read = (lambda found, name: found[name]) if client.kind == "http" else (lambda found, name: list(found.settings[name].value))
    assert read(settings, "trace_level") == ["TIMESTAMPS"]
    client.update_trace_settings(model_name="identity", settings={"trace_rate": "7"})
    assert "7" in read(client.get_trace_settings("identity"), "trace_rate")
    client.update_trace_settings(model_name="identity", settings={"trace_rate": None})
    client.update_trace_settings(settings={"trace_level": None, "trace_rate": None})
    assert read(client.get_trace_settings(), "trace_level") == ["OFF"]
    client.update_log_settings({"log_verbose_level": 1})
    changed = client.get_log_settings()
    assert (changed["log_verbose_level"] if client.kind == "http" else changed.settings["log_verbose_level"].uint32_param) == 1
    client.update_log_settings({"log_verbose_level": 0})


def test_the_asyncio_clients_infer_and_stream(server: KserveProcess) -> None:
    async def run() -> None:
        async with triton_http_aio.InferenceServerClient(server.http) as http, triton_grpc_aio.InferenceServerClient(server.grpc) as grpc:
            for client, module in ((http, triton_http_aio), (grpc, triton_grpc_aio)):
                assert await client.is_server_ready()
                tensor = module.InferInput("INPUT0", [1, 16], "FP32")
                tensor.set_data_from_numpy(_sixteen())
                results = await asyncio.gather(*(client.infer("identity", [tensor]) for _ in range(16)))
                for result in results:
                    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), _sixteen())

            async def requests() -> Any:
                yield {"model_name": "repeat_decoupled", "inputs": [_count(2)]}

            words = [result.as_numpy("text_output")[0] async for result, _ in grpc.stream_infer(requests())]
            assert words == [b"tok0 ", b"tok1 "]

    asyncio.run(run())


def test_metrics_are_on_their_own_port_too(server: KserveProcess) -> None:
    import httpx

    page = httpx.get(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=10)
    assert page.status_code == 200
    assert "# TYPE" in page.text
    assert httpx.get(f"http://127.0.0.1:{server.metrics_port}/v2", timeout=10).status_code == 404
