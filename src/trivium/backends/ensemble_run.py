"""One request going through the steps of an ensemble. Runs on callbacks alone; nothing waits in a task.

Tensors live in branches. The request's own make the root. What a step answers once joins the branch it ran in; each of a decoupled step's
answers opens a branch of its own, which sees its parent's tensors: the steps after it run once per branch, and so the ensemble answers once
per branch in which all its outputs are there. Answers leave in the order in which the branches were opened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from functools import partial

from trivium.backends.ensemble_graph import EnsembleGraph, Step
from trivium.backends.tensor_base import Inference, ModelCaller, ModelSignature
from trivium.backends.tensor_inference import Stage, TensorInference
from trivium.errors import GenerationFailed, TriviumError
from trivium.infer import InferRequest, InferResponse, RequestedOutput, Tensor


class _Branch:
    __slots__ = ("children", "has_answered", "num_active", "parent", "response", "started", "tensors")

    def __init__(self, parent: _Branch | None = None) -> None:
        self.parent = parent
        self.tensors: dict[str, Tensor | None] = {}
        """None: an optional input that the request doesn't have."""
        self.children: list[_Branch] = []
        self.started: set[int] = set()
        self.num_active = 0
        """Steps that run in this branch, or wait for their turn."""
        self.response: InferResponse | None = None
        self.has_answered = False

    def line(self) -> Iterator[_Branch]:
        """This branch and its ancestors."""
        branch: _Branch | None = self
        while branch is not None:
            yield branch
            branch = branch.parent

    def get(self, tensor: str) -> Tensor | None:
        """Raises `KeyError` for one that isn't there (yet)."""
        for branch in self.line():
            if tensor in branch.tensors:
                return branch.tensors[tensor]
        raise KeyError(tensor)

    def has(self, tensor: str) -> bool:
        return any(tensor in branch.tensors for branch in self.line())


class EnsembleRun:
    def __init__(
        self, signature: ModelSignature, graph: EnsembleGraph, caller: ModelCaller, inference: TensorInference, *, max_in_flight: int
    ) -> None:
        self._signature = signature
        self._caller = caller
        self._inference = inference
        self._request: InferRequest = inference.request
        self._max_in_flight = max_in_flight
        wanted = [output.name for output in inference.request.outputs]
        self._outputs = tuple(wanted) or graph.outputs
        # Without a choice of outputs every step runs, also one whose outputs nobody takes.
        needed = graph.steps_for(wanted) if wanted else frozenset(range(len(graph.steps)))
        self._steps = [step for step in graph.steps if step.index in needed]
        self._used = {*self._outputs, *(tensor for step in self._steps for tensor in step.inputs.values())}
        self._graph = graph
        self._root = _Branch()
        self._active: dict[Inference, None] = {}
        self._num_active = 0
        self._num_running = dict.fromkeys(needed, 0)
        self._turns: dict[int, deque[_Branch]] = {index: deque() for index in sorted(needed)}
        self._missing = ""

    def start(self) -> None:
        self._inference.on_cancel(self._cancel)
        given = {tensor.name: tensor for tensor in self._request.inputs}
        self._root.tensors.update({spec.name: given.get(spec.name) for spec in self._signature.inputs})
        # Steps may answer at once; without this the run could be over before the others have begun.
        self._num_active += 1
        self._advance(self._root)
        self._num_active -= 1
        self._emit()

    # -- steps --------------------------------------------------------------------------------------------------------------------

    def _advance(self, branch: _Branch) -> None:
        """Start what `branch` now has all tensors for; complete it if all outputs are there; the same for those that see its tensors."""
        for step in self._steps:
            if self._inference.stage is Stage.ENDED:
                return
            if self._may_start(step, branch):
                branch.started.add(step.index)
                branch.num_active += 1
                self._num_active += 1
                if self._max_in_flight and self._num_running[step.index] >= self._max_in_flight:
                    self._turns[step.index].append(branch)
                else:
                    self._call(step, branch)
        if not any(above.has_answered for above in branch.line()) and all(branch.has(output) for output in self._outputs):
            branch.has_answered = True
            branch.response = self._response(branch)
        for child in list(branch.children):
            self._advance(child)

    def _may_start(self, step: Step, branch: _Branch) -> bool:
        if any(step.index in above.started for above in branch.line()):
            return False
        tensors = step.inputs.values()
        is_here = branch is self._root if not tensors else any(tensor in branch.tensors for tensor in tensors)
        return is_here and all(branch.has(tensor) for tensor in tensors)

    def _call(self, step: Step, branch: _Branch) -> None:
        self._num_running[step.index] += 1
        inputs = [
            Tensor(name, tensor.datatype, tensor.shape, tensor.data) for name, key in step.inputs.items() if (tensor := branch.get(key)) is not None
        ]
        whole = self._request
        request = InferRequest(
            model=step.model,
            version=step.version,
            id=whole.id,
            inputs=inputs,
            outputs=[RequestedOutput(name=name) for name, tensor in step.outputs.items() if tensor in self._used],
            parameters=whole.parameters,
            correlation_id=whole.correlation_id,
            sequence_start=whole.sequence_start,
            sequence_end=whole.sequence_end,
            priority=whole.priority,
            timeout_us=whole.timeout_us,
        )
        try:
            inference = self._caller.infer(request)
        except TriviumError as error:
            self._fail(error)
            return
        self._active[inference] = None
        inference.deliver_to(partial(self._on_response, step, branch, inference), self._fail)

    def _on_response(self, step: Step, branch: _Branch, inference: Inference, response: InferResponse) -> None:
        if response.is_final:
            self._active.pop(inference, None)
        if self._inference.stage is Stage.ENDED:
            return
        if not response.is_null:
            target = branch
            if not response.is_final or any(tensor in branch.tensors for tensor in step.outputs.values()):
                target = _Branch(branch)
                branch.children.append(target)
            self._take(step, target, response)
        if response.is_final:
            self._on_step_end(step, branch)
        self._emit()

    def _take(self, step: Step, branch: _Branch, response: InferResponse) -> None:
        outputs = {tensor.name: tensor for tensor in response.outputs}
        for name, key in step.outputs.items():
            if name in outputs:
                branch.tensors[key] = outputs[name]
            elif key in self._used:
                self._missing = f"{step} gave no output '{name}'"
        self._advance(branch)

    def _on_step_end(self, step: Step, branch: _Branch) -> None:
        branch.num_active -= 1
        self._num_active -= 1
        self._num_running[step.index] -= 1
        turns = self._turns[step.index]
        if turns and self._inference.stage is not Stage.ENDED:
            self._call(step, turns.popleft())

    # -- answers ------------------------------------------------------------------------------------------------------------------

    def _response(self, branch: _Branch) -> InferResponse:
        outputs: list[Tensor] = []
        for name in self._outputs:
            tensor = branch.get(name)
            if tensor is not None:
                outputs.append(Tensor(name, tensor.datatype, tensor.shape, tensor.data))
        return InferResponse(model=self._signature.name, version=str(self._signature.version), id=self._request.id, outputs=outputs, is_final=False)

    def _emit(self) -> None:
        """Send what is ready and in turn, and end the request once nothing runs any more."""
        ready: list[InferResponse] = []
        self._collect(self._root, ready)
        if not self._signature.is_decoupled and len(ready) > 1:
            self._fail(GenerationFailed("a step that isn't known to be decoupled gave more than one response"))
            return
        is_over = self._num_active == 0
        for number, response in enumerate(ready, 1):
            response.is_final = not self._signature.is_decoupled or (is_over and number == len(ready))
            self._inference.respond(response)
        if is_over and self._inference.stage is not Stage.ENDED:
            self._end()

    def _collect(self, branch: _Branch, ready: list[InferResponse]) -> bool:
        """Take the answers of `branch` and of those under it, in order, up to the first that may still give one; whether there is none such."""
        if branch.response is not None:
            ready.append(branch.response)
            branch.response = None
        while branch.children:
            if not self._collect(branch.children[0], ready):
                return False
            branch.children.pop(0)
        # What has its answer gives no other; what hasn't may get it from a tensor of its parent's.
        return branch.num_active == 0 and (branch.has_answered or self._num_active == 0)

    def _end(self) -> None:
        is_decoupled = self._signature.is_decoupled
        if is_decoupled and not self._missing:
            own = InferResponse(model=self._signature.name, version=str(self._signature.version), id=self._request.id, outputs=[], is_null=True)
            self._inference.respond(own)
            return
        absent = next((output for output in self._outputs if not self._root.has(output)), "")
        reason = self._missing or f"{self._graph.producers[absent]} ended without a response"
        self._fail(GenerationFailed(f"output '{absent}' could not be computed: {reason}"))

    def _fail(self, error: TriviumError) -> None:
        """Whatever step it comes from, it is the ensemble's, of the same kind."""
        own = copy(error)
        own.message = f"in ensemble '{self._signature.name}', {error.message}"
        own.args = (own.message,)
        self._inference.fail(own)
        self._cancel()

    def _cancel(self) -> None:
        for turns in self._turns.values():
            turns.clear()
        while self._active:
            inference, _ = self._active.popitem()
            inference.cancel()
