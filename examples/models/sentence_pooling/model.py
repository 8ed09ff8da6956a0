"""The mean of a sentence's token vectors, of length 1."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.pool(request) for request in requests]

    def pool(self, request):
        vectors = pb_utils.get_input_tensor_by_name(request, "last_hidden_state").as_numpy()
        mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy().astype(np.float32)[..., None]
        mean = (vectors * mask).sum(1) / mask.sum(1).clip(1)
        length = np.linalg.norm(mean, axis=1, keepdims=True).clip(1e-12)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", (mean / length).astype(np.float32))])
