"""`trivium pull` as a process with caches of its own, and a small model's files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}).encode()


def model_files(weight_bytes: int) -> dict[str, bytes]:
    """Contents by name; only the first four are ever read."""
    return {
        "config.json": CONFIG,
        "generation_config.json": b"{}",
        "tokenizer.json": b'{"version": "1.0"}',
        "model.safetensors": random.Random(7).randbytes(weight_bytes),
        "pytorch_model.bin": b"never fetched",
        "modeling_custom.py": b"never fetched",
        "README.md": b"never fetched",
    }


class Trivium:
    """The command with caches of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {
            "HF_HOME": str(folder / "hf"),
            "TRIVIUM_CACHE": str(folder / "trivium"),
            "MODELSCOPE_CACHE": str(folder / "modelscope"),
            "HF_HUB_DOWNLOAD_TIMEOUT": "3",
            "HF_HUB_ETAG_TIMEOUT": "3",
        }

    def start(self, *args: str, **variables: str) -> subprocess.Popen[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "AWS_", "MODELSCOPE_", "TRIVIUM_"))}
        environment = {**clean, **self.variables, **variables}
        command = [sys.executable, "-m", "trivium", *args]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *args: str, **variables: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, **variables)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(args, process.returncode, out, err)


def pulled(done: subprocess.CompletedProcess[str]) -> Path:
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def check_folder(folder: Path, files: dict[str, bytes]) -> None:
    here = {path.name for path in folder.iterdir() if not path.name.startswith("trivium-source") and not path.name.startswith(".")}
    assert here == {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}
    for name in here:
        assert hashlib.sha256((folder / name).read_bytes()).digest() == hashlib.sha256(files[name]).digest(), name
