"""Kernels run in Triton's interpreter where there is no GPU. Triton reads the variable when a kernel is defined, so it is set before any is."""

from __future__ import annotations

import importlib.util
import os

import torch

collect_ignore: list[str] = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += ["test_sampling_kernels.py"]
elif not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
