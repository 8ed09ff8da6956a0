"""The machine instructions that turn 4-bit codes into numbers, carried out here instruction by instruction, and the layouts they expect."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import Tensor

from trivium.ops.triton import quantized_codes
from trivium.ops.triton.quantized import _interleaved, _table_bytes
from trivium.weights.tables import code_table

MASK = 0xFFFFFFFF


def instructions(function: str) -> list[list[str]]:
    """Name and operands of each instruction in a function's assembly."""
    source = inspect.getsource(quantized_codes)
    body = source[source.index(f"def {function}(") :]
    text = re.search(r'"""\s*\{(.*?)\}\s*"""', body, re.DOTALL)
    assert text is not None
    lines = [line.strip() for line in text[1].split(";") if line.strip() and not line.strip().startswith(".reg")]
    return [re.split(r"[\s,]+", line) for line in lines]


def prmt(a: int, b: int, selector: int) -> int:
    source, result = (b << 32) | a, 0
    for index in range(4):
        nibble = (selector >> (4 * index)) & 15
        assert nibble < 8, "sign replication is not used"
        result |= ((source >> (8 * nibble)) & 255) << (8 * index)
    return result


def run(function: str, inputs: dict[str, int]) -> list[int]:
    """The eight output registers."""
    registers = dict(inputs)

    def value(operand: str) -> int:
        return registers[operand] if operand in registers else int(operand, 0)

    for name, target, *operands in instructions(function):
        values = [value(operand) for operand in operands]
        if name == "prmt.b32":
            registers[target] = prmt(*values)
        elif name == "lop3.b32":
            assert values[3] == 0xEA  # (a and b) or c
            registers[target] = (values[0] & values[1]) | values[2]
        elif name == "shr.u32":
            registers[target] = values[0] >> values[1]
        else:
            assert name == "and.b32", name
            registers[target] = values[0] & values[1]
    return [registers[f"${index}"] for index in range(8)]


def pair(register: int) -> list[float]:
    """Two bf16 numbers, the first in the low half."""
    return torch.tensor([register & MASK], dtype=torch.int64).to(torch.uint32).view(torch.bfloat16).tolist()


def words_of(codes: Tensor, *, in_pairs: bool) -> list[int]:
    """The 16 words of one output's run of 128 codes."""
    packed = _interleaved(codes.unsqueeze(0), in_pairs=in_pairs)
    assert packed.shape == (1, 1, 16)
    return [word & MASK for word in packed.flatten().tolist()]


def random_codes(seed: int) -> Tensor:
    return torch.randint(0, 16, (128,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("seed", range(3))
def test_nibbles_become_whole_numbers_in_pairs(seed: int) -> None:
    codes = random_codes(seed)
    words = words_of(codes, in_pairs=False)
    for j in range(0, 16, 2):
        outputs = run("unpacked", {"$8": words[j], "$9": words[j + 1]})
        for i, register in enumerate(outputs):
            assert pair(register) == [128.0 + int(codes[16 * i + j]), 128.0 + int(codes[16 * i + j + 1])]


@pytest.mark.parametrize("name", ["nf4", "fp4"])
def test_codes_are_looked_up_in_pairs(name: str) -> None:
    codes, table = random_codes(7), code_table(name)
    rounded = table.to(torch.bfloat16).tolist()
    entries = [word & MASK for word in _table_bytes(table).tolist()]
    constants = {f"${10 + 2 * index + copy}": entries[index] for index in range(8) for copy in (0, 1)}
    words = words_of(codes, in_pairs=True)
    for j in range(0, 16, 2):
        outputs = run("looked_up", {"$8": words[j], "$9": words[j + 1], **constants})
        for i, register in enumerate(outputs):
            assert pair(register) == [rounded[int(codes[16 * i + j])], rounded[int(codes[16 * i + j + 1])]]
