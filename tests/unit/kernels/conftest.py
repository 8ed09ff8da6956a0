"""Kernels run in Triton's interpreter where there is no GPU. Triton reads the variable when a kernel is defined, so it is set before any is."""

from __future__ import annotations

import importlib.util
import os

import torch

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("triton") is None:
    collect_ignore_glob += ["test_*.py"]
elif not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def _let_interpreter_index_with_new_numpy() -> None:
    """Triton 3.6 keeps scalars as arrays of one element, which NumPy from 2.4 on no longer turns into an `int`."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_fix(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_and_fix


if os.environ.get("TRITON_INTERPRET") == "1":
    _let_interpreter_index_with_new_numpy()
