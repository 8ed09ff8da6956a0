"""Tests on the packaged model's real weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers

from trivium.sources.packaged import packaged_model

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    if packaged_model() is None:
        pytest.skip("the packaged model is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
