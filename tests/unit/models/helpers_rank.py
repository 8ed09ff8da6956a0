"""One rank of a tensor-parallel set, as a process of its own: `python helpers_rank.py rank size store folder`.

The folder has one folder per case, each with config.json and model.safetensors; logits are written beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(rank: int, size: int, store: str, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file
    from torch import distributed as dist

    sys.path.insert(0, str(Path(__file__).parent))
    from helpers_harness import PagedHarness

    from trivium.arch import ModelSpec
    from trivium.ops.collective import ParallelContext
    from trivium.ops.dispatch import references_only

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    parallel = ParallelContext(rank, size, dist.group.WORLD)
    tokens = json.loads((folder / "tokens.json").read_text())
    with references_only("cpu"):
        for case in sorted(path for path in folder.iterdir() if path.is_dir()):
            spec = ModelSpec.from_config(json.loads((case / "config.json").read_text()))
            harness = PagedHarness(spec, load_file(case / "model.safetensors"), parallel=parallel)
            save_file({"logits": harness.logits(tokens, chunk=50)}, case / f"logits-{size}-{rank}.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
