"""Texts to token ids of all-MiniLM-L6-v2.

Rows are padded to a multiple of 16 tokens, so that requests of about the same length have the same shape and the encoder batches them.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

MAX_TOKENS = 256
MULTIPLE = 16


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()
        outputs = json.loads(args["model_config"])["output"]
        assert [output["name"] for output in outputs] == ["input_ids", "attention_mask", "token_type_ids"]

    def execute(self, requests):
        return [self.tokenize(request) for request in requests]

    def tokenize(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
        try:
            encodings = self.tokenizer.encode_batch([text.decode() for text in texts])
        except UnicodeDecodeError:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("input 'text' is not UTF-8", pb_utils.TritonError.INVALID_ARG))
        width = max((len(encoding.ids) for encoding in encodings), default=1)
        width = -(-width // MULTIPLE) * MULTIPLE
        ids = np.zeros((len(encodings), width), np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in tensors.items()])
