"""One thread, quiet libraries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
