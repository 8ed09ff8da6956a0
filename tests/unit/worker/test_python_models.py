"""`model.py` files in real processes: Triton's contract, and what becomes of requests when the model does wrong."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers_worker import FakeExecution, Served, arrays, request, served, write_python_model

import trivium
from trivium.errors import EngineDead, InternalError, InvalidRequest, ModelLoadError, NotReady, TriviumError
from trivium.infer import DataType, InferRequest, InferResponse, Tensor
from trivium.metrics.catalogue import WORKER_RESTARTS
from trivium.metrics.exposition import Exposition

MANY_THINGS = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        config.set_max_batch_size(8)
        config.set_dynamic_batching()
        return config

    def initialize(self, args):
        self.args = args
        self.kept = None

    def execute(self, requests):
        return [self.one(request, len(requests)) for request in requests]

    def one(self, request, count):
        array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        text = json.loads(request.parameters()).get("do", "")
        if text == "raise":
            raise ValueError("kaboom")
        if text == "error":
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG))
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "hang":
            time.sleep(60)
        if text == "sleep":
            time.sleep(0.2)
        if text == "keep":
            self.kept = array
        if text == "kept":
            array = self.kept
        if text == "none":
            return None
        facts = {"args": self.args} if text == "args" else {
            "id": request.request_id(), "correlation": request.correlation_id(), "flags": request.flags(), "timeout": request.timeout(),
            "outputs": request.requested_output_names(), "model": request.model_name(), "version": request.model_version(), "count": count,
            "pid": os.getpid(), "secrets": [name for name in ("HF_TOKEN", "TRIVIUM_API_KEY") if name in os.environ],
            "cancelled": request.is_cancelled(), "writable": bool(array.flags.writeable),
        }
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT", array * 2), pb_utils.Tensor("TEXT", np.array([json.dumps(facts)], dtype=object))],
            parameters={"seen": text, "n": 3},
        )
"""
GROUPS = 'backend: "python" parameters { key: "execution_timeout_s" value { string_value: "1.0" } } '


@pytest.fixture
async def model(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(write_python_model(tmp_path / "model", MANY_THINGS), GROUPS) as found:
        yield found


def ask(do: str = "", value: Any = ((1.0, 2.0),), **fields: Any) -> InferRequest:
    made = request(IN=np.array(value, np.float32))
    made.parameters = {"do": do}
    for name, field in fields.items():
        setattr(made, name, field)
    return made


def facts(execution: FakeExecution) -> dict[str, Any]:
    return json.loads(execution.arrays()["TEXT"][0])


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TRIVIUM_API_KEY", "secret")


async def test_what_a_request_says_and_what_a_response_says(model: Served) -> None:
    config = model.config
    assert (config.max_batch_size, [tensor.name for tensor in config.output]) == (8, ["OUT", "TEXT"])
    assert config.HasField("dynamic_batching")
    batch = await model.run(ask(id="r1", correlation_id="s", sequence_start=True, timeout_us=7), ask(value=((3.0,),)))
    assert batch[0].arrays()["OUT"].tolist() == [[2.0, 4.0]]
    assert batch[1].arrays()["OUT"].tolist() == [[6.0]]
    said = facts(batch[0])
    assert said.pop("pid") in model.pool.process_ids
    assert said == {
        "id": "r1",
        "correlation": "s",
        "flags": 1,
        "timeout": 7,
        "outputs": ["OUT", "TEXT"],
        "model": "model",
        "version": 1,
        "count": 2,
        "cancelled": False,
        "writable": True,
        "secrets": [],
    }
    assert batch[0].responses[0].parameters == {"seen": "", "n": 3}
    assert (batch[0].responses[0].id, batch[0].responses[0].version) == ("r1", "1")
    (some,) = await model.run(ask(outputs=[]))
    assert set(some.arrays()) == {"OUT", "TEXT"}
    (one,) = await model.run(request(IN=np.ones((1, 1), np.float32), outputs=["OUT"]))
    assert set(one.arrays()) == {"OUT"}
    (args,) = await model.run(ask("args"))
    found = facts(args)["args"]
    assert {name: type(value).__name__ for name, value in found.items()} == dict.fromkeys(found, "str")
    assert (found["model_name"], found["model_version"], found["model_instance_kind"]) == ("model", "1", "CPU")
    assert json.loads(found["model_config"])["max_batch_size"] == 8


async def test_errors_of_a_model(model: Served) -> None:
    bad, good = await model.run(ask("error"), ask())
    assert isinstance(bad.error, InvalidRequest)
    assert bad.error.message == "negative"
    assert good.error is None
    both = await model.run(ask("raise"), ask())
    for execution in both:
        assert execution.error is not None
        assert execution.error.slug == InternalError.slug
        assert execution.error.message.startswith(
            "Failed to process the request(s) for model 'model_0', message: ValueError: kaboom\n\nAt:\n  model/1/model.py("
        )
        assert str(model.server.model_path) not in execution.error.message
    (none,) = await model.run(ask("none"))
    assert "found type 'NoneType'" in str(none.error)


async def test_a_dead_process_fails_its_batch_only_and_is_back(model: Served) -> None:
    instance = model.pool.instances[0]
    (before,) = await model.run(ask())
    begin = asyncio.get_running_loop().time()
    (dead,), (behind,) = await asyncio.gather(model.run(ask("die")), model.run(ask()))
    assert isinstance(dead.error, EngineDead)
    assert "signal 9" in dead.error.message
    assert facts(behind)["pid"] != facts(before)["pid"]
    assert asyncio.get_running_loop().time() - begin < 2.0
    assert instance.is_alive
    assert model.pool.num_restarts == 1
    assert model.server.registry.counter(WORKER_RESTARTS, "model", "1").value == 1
    # A batch that takes longer than its limit has hung.
    (hung,) = await model.run(ask("hang"))
    assert isinstance(hung.error, EngineDead)
    assert asyncio.get_running_loop().time() - begin < 4.0
    await instance.wait_alive()
    assert (await model.run(ask()))[0].error is None


async def test_large_tensors_go_through_shared_memory_and_may_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.client.worker_connection.REGION_SIZE", 2**20)
    value = np.arange(100_000, dtype=np.float32)[None]
    other = np.zeros_like(value)
    async with served(write_python_model(tmp_path / "model", MANY_THINGS), GROUPS) as model:
        connection = model.pool.instances[0]._connection  # type: ignore[attr-defined]
        for _ in range(3):
            (execution,) = await model.run(ask("keep", value))
            assert np.array_equal(execution.arrays()["OUT"], value * 2)
        (execution,) = await model.run(ask("", other))
        assert not execution.arrays()["OUT"].any()
        assert connection.outbound.num_blocks == 1  # the array that the model keeps
        (execution,) = await model.run(ask("kept", other))
        assert np.array_equal(execution.arrays()["OUT"], value * 2)
        await model.run(ask("keep"))
        (execution,) = await model.run(ask())
        assert connection.outbound.num_blocks == 0
        # What finds no room in the region goes through the socket.
        batch = await model.run(*[ask("", value) for _ in range(8)])
        assert all(np.array_equal(execution.arrays()["OUT"], value * 2) for execution in batch)


async def test_two_instances_are_two_processes(tmp_path: Path) -> None:
    folder = write_python_model(tmp_path / "model", MANY_THINGS)
    async with served(folder, GROUPS + 'instance_group { name: "group" count: 2 kind: KIND_CPU }') as model:
        assert [instance.name for instance in model.pool.instances] == ["group_0", "group_1"]
        (first,), (second,) = await asyncio.gather(model.run(ask("die")), model.run(ask("sleep"), instance=1))
        assert isinstance(first.error, EngineDead)
        assert facts(second)["pid"] in model.pool.process_ids
        pids = model.pool.process_ids
        for pid, instance in zip(pids, model.pool.instances, strict=True):
            await instance.close()
            assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("class TritonPythonModel:\n    def initialize(self, args): raise RuntimeError('boom on load')", "Internal: RuntimeError: boom on load"),
        ("class Other: pass", "model.py has no class TritonPythonModel"),
        ("class TritonPythonModel: pass", "has no method 'execute'"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("os.kill(os.getpid(), 11)", "ended unexpectedly \\(signal 11\\)"),
        (
            "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(c): c.add_input({'name': 'x', 'dims': [1]}); return c",
            "is missing 'data_type' property",
        ),
    ],
)
async def test_a_model_that_does_not_load(tmp_path: Path, code: str, text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        async with served(write_python_model(tmp_path / "model", code), 'backend: "python"'):
            pass


async def test_code_runs_only_if_that_is_allowed(tmp_path: Path) -> None:
    folder = write_python_model(tmp_path / "model", "open('ran', 'w')")
    with pytest.raises(ModelLoadError, match="needs --allow-python-models"):
        async with served(folder, 'backend: "python"', allow_python_models=False):
            pass


async def test_a_process_that_can_not_be_started_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trivium.client.worker_supervisor.MAX_FAILED_STARTS", 2)
    folder = write_python_model(tmp_path / "model", MANY_THINGS)
    async with served(folder, GROUPS) as model:
        (folder / "1" / "model.py").write_text("raise RuntimeError('broken meanwhile')")
        (execution,), (waiting,) = await asyncio.gather(model.run(ask("die")), model.run(ask()))
        assert isinstance(execution.error, EngineDead)
        assert "broken meanwhile" in str(waiting.error)
        with pytest.raises(TriviumError, match="broken meanwhile"):
            await model.pool.instances[0].wait_alive()
        (execution,) = await model.run(ask())
        assert "broken meanwhile" in str(execution.error)


DECOUPLED = """
class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = threading.Event()

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = int(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0])
            if count == -1:
                raise ValueError("kaboom")
            if count == -2:
                threading.Thread(target=self.wait, args=(sender,)).start()
                continue
            if count == -3:
                os.kill(os.getpid(), 9)
            for index in range(count):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([index], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            try:
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except pb_utils.TritonModelException:
                continue
            os._exit(1)

    def wait(self, sender):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([7], np.int32))]))
        while not sender.is_cancelled():
            time.sleep(0.005)
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)), flags=1)
"""
DECOUPLED_CONFIG = 'backend: "python" model_transaction_policy { decoupled: true } output { name: "OUT" data_type: TYPE_INT32 dims: 1 }'


def count(value: int) -> InferRequest:
    return request(IN=np.array([value], np.int32))


async def test_decoupled_models_answer_as_often_as_they_like(tmp_path: Path) -> None:
    async with served(write_python_model(tmp_path / "model", DECOUPLED), DECOUPLED_CONFIG) as model:
        none, three = await model.run(count(0), count(3))
        await asyncio.gather(none.ended.wait(), three.ended.wait())
        assert [(response.is_null, response.is_final) for response in none.responses] == [(True, True)]
        assert [arrays(response)["OUT"].tolist() for response in three.responses[:3]] == [[0], [1], [2]]
        assert [response.is_final for response in three.responses] == [False, False, False, True]
        (raised,) = await model.run(count(-1))
        await raised.ended.wait()
        assert "ValueError: kaboom" in str(raised.error)
        # A request that goes on in the background doesn't keep the next one waiting, and learns that nobody waits for it.
        (background,) = await model.run(count(-2))
        (one,) = await model.run(count(1))
        await one.ended.wait()
        assert not background.ended.is_set()
        background.cancel()
        await background.ended.wait()
        assert background.error is not None
        assert background.error.slug == "cancelled"
        # When the process dies, what was open ends.
        (background,) = await model.run(count(-2))
        (dead,) = await model.run(count(-3))
        await background.ended.wait()
        assert isinstance(background.error, EngineDead)
        assert isinstance(dead.error, EngineDead)


COROUTINE = """
class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            answer = await pb_utils.InferenceRequest(model_name="add", requested_output_names=["SUM"], inputs=request.inputs()).async_exec()
            total = pb_utils.get_output_tensor_by_name(answer, "SUM").as_numpy()
            await asyncio.sleep(float(total[0]) / 1000)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", total)]), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def add(called: InferRequest) -> list[InferResponse]:
    (tensor,) = called.inputs
    (value,) = np.frombuffer(tensor.data, np.int32)
    total = np.array([value + 1], np.int32)
    return [InferResponse(model="add", version="1", outputs=[Tensor("SUM", DataType.INT32, (1,), total.tobytes())])]


async def test_coroutines_of_several_batches_run_side_by_side(tmp_path: Path) -> None:
    async with served(write_python_model(tmp_path / "model", COROUTINE), DECOUPLED_CONFIG, models={"add": add}) as model:
        (slow,) = await model.run(count(300))
        (fast,) = await model.run(count(10))
        await fast.ended.wait()
        assert not slow.ended.is_set()
        await slow.ended.wait()
        assert (slow.arrays()["OUT"].tolist(), fast.arrays()["OUT"].tolist()) == ([301], [11])


CALLER = """
class TritonPythonModel:
    def initialize(self, args):
        counter = pb_utils.MetricFamily("calls_made", "Calls made.", pb_utils.MetricFamily.COUNTER)
        self.counter = counter.Metric({"kind": "test"})
        gauge = pb_utils.MetricFamily("depth", "Depth.", pb_utils.MetricFamily.GAUGE).Metric({})
        gauge.set(4.5)
        histogram = pb_utils.MetricFamily("sizes", "Sizes.", pb_utils.MetricFamily.HISTOGRAM).Metric({}, buckets=[1.0, 2.0])
        histogram.observe(1.5)
        pb_utils.Logger.log_warn("loading")

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        what = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()[0].decode()
        self.counter.increment(2)
        try:
            found = getattr(self, what)()
        except pb_utils.TritonModelException as error:
            found = f"raised {error}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([found], dtype=object))])

    def call(self, model="twice", decoupled=False):
        inputs = [pb_utils.Tensor("A", np.arange(40000, dtype=np.float32))]
        made = pb_utils.InferenceRequest("inner", 0, inputs, ["B"], model, timeout=5, parameters={"x": 1})
        return made.exec(decoupled=decoupled)

    def twice(self):
        return float(pb_utils.get_output_tensor_by_name(self.call(), "B").as_numpy().sum())

    def unknown(self):
        answer = self.call("nobody")
        return f"{answer.has_error()} {answer.error().message()} {answer.error().code() == pb_utils.TritonError.NOT_FOUND}"

    def several(self):
        return self.call("several").error().message()

    def stream(self):
        return str([len(answer.output_tensors()) for answer in self.call("several", decoupled=True)])

    def threads(self):
        found = []
        threads = [threading.Thread(target=lambda: found.append(self.twice())) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return str(set(found))

    def give_up(self):
        answers = self.call("endless", decoupled=True)
        next(iter(answers))
        answers.cancel()
        return str([answer.has_error() for answer in answers][-1])

    def repository(self):
        pb_utils.load_model("other", config="{}", files={"file:1/model.bin": b"12"})
        pb_utils.unload_model("other", unload_dependents=True)
        return f"{pb_utils.is_model_ready('twice')} {pb_utils.is_model_ready('nobody')}"

    def broken(self):
        pb_utils.load_model("broken")

    def metric(self):
        return self.counter.value()

    def directory(self):
        return os.path.basename(pb_utils.get_model_dir())
"""


def twice(called: InferRequest) -> list[InferResponse]:
    assert (called.id, called.timeout_us, called.parameters, [output.name for output in called.outputs]) == ("inner", 5, {"x": 1}, ["B"])
    doubled = np.frombuffer(called.inputs[0].data, np.float32) * 2
    return [InferResponse(model="twice", version="1", outputs=[Tensor("B", DataType.FP32, doubled.shape, doubled.tobytes())])]


def several(called: InferRequest) -> list[InferResponse]:
    (answer,) = twice(called)
    answer.is_final = False
    return [answer, answer, InferResponse(model="several", version="1", outputs=[], is_null=True)]


def endless(called: InferRequest) -> list[InferResponse]:
    return several(called)[:1]


async def test_models_call_models_and_the_repository(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    models = {"twice": twice, "several": several, "endless": endless}
    async with served(write_python_model(tmp_path / "model", CALLER), 'backend: "python"', models=models) as model:

        async def ask_for(what: str) -> str:
            return (await model.arrays(IN=np.array([what], np.object_)))["OUT"][0].decode()

        total = float(np.arange(40000, dtype=np.float32).sum() * 2)
        assert float(await ask_for("twice")) == pytest.approx(total)
        assert await ask_for("unknown") == "True Request for unknown model: 'nobody' is not found True"
        assert "expected exactly 1 response, got 2" in await ask_for("several")
        assert await ask_for("stream") == "[1, 1, 0]"
        assert await ask_for("threads") == f"{{{float(await ask_for('twice'))}}}"
        assert await ask_for("give_up") == "True"
        assert model.server.answers[-1].is_cancelled
        assert await ask_for("repository") == "True False"
        assert model.server.asked == [("load", "other", "{}", {"file:1/model.bin": b"12"}), ("unload", "other", True)]
        assert await ask_for("broken") == "raised failed to load 'broken'"
        assert await ask_for("metric") == "20.0"
        assert await ask_for("directory") == "1"
        page = Exposition(model.server.registry).render().decode().splitlines()
        shown = [line for line in page if line.startswith(("calls_made", "depth", "sizes"))]
        assert shown[:2] == ['calls_made{kind="test"} 22', "depth 4.5"]
        assert shown[2:] == ['sizes_bucket{le="1.0"} 0', 'sizes_bucket{le="2.0"} 1', 'sizes_bucket{le="+Inf"} 1', "sizes_sum 1.5", "sizes_count 1"]
    assert "calls_made" not in Exposition(model.server.registry).render().decode()
    assert any(record.getMessage() == "loading" and record.levelname == "WARNING" for record in caplog.records)


SENDERS = """
class TritonPythonModel:
    def execute(self, requests):
        if len(requests) == 2:
            for request in requests:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return [None, None]
        sender = requests[0].get_response_sender()
        answer = pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", requests[0].inputs()[0])])
        threading.Thread(target=sender.send, args=(answer, 1)).start()
        return None
"""


async def test_senders_of_models_that_are_not_decoupled_and_rescheduling(tmp_path: Path) -> None:
    async with served(write_python_model(tmp_path / "model", SENDERS), 'backend: "python"') as model:
        assert (await model.arrays(IN=np.array([3], np.int32)))["OUT"].tolist() == [3]
        batch = await model.run(count(1), count(2))
        assert [execution.num_reschedules for execution in batch] == [1, 1]


async def test_closing_ends_what_is_left(tmp_path: Path) -> None:
    async with served(write_python_model(tmp_path / "model", MANY_THINGS), GROUPS) as model:
        task = asyncio.create_task(model.run(ask("sleep")))
        await asyncio.sleep(0)
        await model.pool.close()
        (execution,) = await task
        assert execution.error is None or isinstance(execution.error, EngineDead | NotReady)


def test_a_worker_does_not_outlive_its_server(tmp_path: Path) -> None:
    folder = write_python_model(tmp_path / "model", MANY_THINGS)
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from helpers_worker import served\n"
        "async def main():\n"
        f"    async with served(Path({str(folder)!r}), 'backend: \"python\"') as model:\n"
        "        print(*model.pool.process_ids, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    # It ends when the worker, which has the same standard output, has closed that too.
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=30)
    status = Path(f"/proc/{int(ended.stdout)}/status")
    assert not status.exists() or "zombie" in status.read_text()


PREFIX = """
class TritonPythonModel:
    def execute(self, requests):
        import only_there
        text = np.array([sys.prefix, only_there.__name__, sys.modules["trivium"].__file__], np.object_)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""


async def test_a_model_in_an_environment_of_its_own(tmp_path: Path) -> None:
    folder = write_python_model(tmp_path / "model", PREFIX)
    environment = folder / "environment"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "only_there.py").write_text("")
    (packages / "rest.pth").write_text(str(Path(np.__file__).parents[1]))
    parameter = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }'
    async with served(folder, 'backend: "python" ' + parameter % "$$TRITON_MODEL_DIRECTORY/environment") as model:
        found = (await model.arrays(IN=np.zeros(1, np.float32)))["OUT"].tolist()
    assert found == [str(environment).encode(), b"only_there", str(Path(trivium.__file__)).encode()]
    for wrong, text in ((str(folder), "is no Python environment"), (str(folder / "1" / "model.py"), "unpack it")):
        with pytest.raises(ModelLoadError, match=text):
            async with served(folder, 'backend: "python" ' + parameter % wrong):
                pass
