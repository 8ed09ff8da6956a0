"""Model tests run the torch references unless they ask for the device's fast paths."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import transformers

from trivium.ops.dispatch import references_only

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def references(request: pytest.FixtureRequest) -> Iterator[None]:
    if "fast" in request.node.name:
        yield
    else:
        with references_only("cpu"):
            yield
