"""Codes of quantized weights to numbers, inside kernels.

4-bit codes lie as int32 [K / 128, N, 16]: what a program loads in a step is one piece of memory, and 16 neighbours of x meet the same nibble,
or half of a word, of 16 neighbouring words. Of a run of 128 inputs, input 16 i + j is

- kind int4: nibble i of word j;
- kind table4: of word 2 (j / 2) + i / 4 nibble 2 (i mod 4) + j mod 2, so that the two numbers of a register come from one word.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def unpacked(words):
    """int32 [n, k] → eight bf16 [n, k]: 128 plus each nibble, two at a time. 0x4300 | code is that number, so no integer is converted."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 low, high;
            prmt.b32 low, $8, $9, 0x5410;
            prmt.b32 high, $8, $9, 0x7632;
            lop3.b32 $0, low, 0x000F000F, 0x43004300, 0xEA;
            shr.u32 low, low, 4;
            lop3.b32 $1, low, 0x000F000F, 0x43004300, 0xEA;
            shr.u32 low, low, 4;
            lop3.b32 $2, low, 0x000F000F, 0x43004300, 0xEA;
            shr.u32 low, low, 4;
            lop3.b32 $3, low, 0x000F000F, 0x43004300, 0xEA;
            lop3.b32 $4, high, 0x000F000F, 0x43004300, 0xEA;
            shr.u32 high, high, 4;
            lop3.b32 $5, high, 0x000F000F, 0x43004300, 0xEA;
            shr.u32 high, high, 4;
            lop3.b32 $6, high, 0x000F000F, 0x43004300, 0xEA;
            shr.u32 high, high, 4;
            lop3.b32 $7, high, 0x000F000F, 0x43004300, 0xEA;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r",
        args=[words],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def looked_up(words, bytes_ptr):
    """int32 [n, k] of kind table4 → eight bf16 [n, k]. Bytes of the table's entries, low and high ones apart, are picked four at a time by the
    byte-permute instruction; `bytes_ptr`: int32 [8], the low bytes of entries 0 to 3, 4 to 7, …, then the high ones."""
    l0, l1, l2, l3 = tl.load(bytes_ptr), tl.load(bytes_ptr + 1), tl.load(bytes_ptr + 2), tl.load(bytes_ptr + 3)
    h0, h1, h2, h3 = tl.load(bytes_ptr + 4), tl.load(bytes_ptr + 5), tl.load(bytes_ptr + 6), tl.load(bytes_ptr + 7)
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b32 pick, half, a, b, low, high;
            and.b32 pick, $8, 0x77777777;
            shr.u32 half, $8, 1;
            lop3.b32 half, half, 0x44444444, 0x32103210, 0xEA;
            prmt.b32 a, $10, $12, pick;
            prmt.b32 b, $14, $16, pick;
            prmt.b32 low, a, b, half;
            prmt.b32 a, $18, $20, pick;
            prmt.b32 b, $22, $24, pick;
            prmt.b32 high, a, b, half;
            prmt.b32 $0, low, high, 0x5140;
            prmt.b32 $1, low, high, 0x7362;
            shr.u32 pick, pick, 16;
            shr.u32 half, half, 16;
            prmt.b32 a, $10, $12, pick;
            prmt.b32 b, $14, $16, pick;
            prmt.b32 low, a, b, half;
            prmt.b32 a, $18, $20, pick;
            prmt.b32 b, $22, $24, pick;
            prmt.b32 high, a, b, half;
            prmt.b32 $2, low, high, 0x5140;
            prmt.b32 $3, low, high, 0x7362;
            and.b32 pick, $9, 0x77777777;
            shr.u32 half, $9, 1;
            lop3.b32 half, half, 0x44444444, 0x32103210, 0xEA;
            prmt.b32 a, $10, $12, pick;
            prmt.b32 b, $14, $16, pick;
            prmt.b32 low, a, b, half;
            prmt.b32 a, $18, $20, pick;
            prmt.b32 b, $22, $24, pick;
            prmt.b32 high, a, b, half;
            prmt.b32 $4, low, high, 0x5140;
            prmt.b32 $5, low, high, 0x7362;
            shr.u32 pick, pick, 16;
            shr.u32 half, half, 16;
            prmt.b32 a, $10, $12, pick;
            prmt.b32 b, $14, $16, pick;
            prmt.b32 low, a, b, half;
            prmt.b32 a, $18, $20, pick;
            prmt.b32 b, $22, $24, pick;
            prmt.b32 high, a, b, half;
            prmt.b32 $6, low, high, 0x5140;
            prmt.b32 $7, low, high, 0x7362;
        }
        """,
        "=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        args=[words, l0, l1, l2, l3, h0, h1, h2, h3],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def four_bits(run, nibble: tl.constexpr, zero, table_ptr, KIND: tl.constexpr, ZEROS: tl.constexpr, DTYPE: tl.constexpr):
    """Pointers to the words of a run, [n, 1] → the numbers of 16 neighbouring inputs, [n, 16], less `zero` [n], in DTYPE. Whole numbers stay
    exact; what isn't whole is rounded last."""
    j = tl.arange(0, 16)
    if KIND == "table4":
        words = tl.load(run + (j // 2 * 2 + nibble // 4)[None, :])
        codes = (words >> (4 * (nibble % 4 * 2 + j % 2))[None, :]) & 15
        values = tl.load(table_ptr + codes).to(DTYPE)
    else:
        codes = (tl.load(run + j[None, :]) >> (4 * nibble)) & 15
        if ZEROS == "fraction":
            values = (codes.to(tl.float32) - zero[:, None]).to(DTYPE)
        elif tl.bfloat16 == DTYPE:
            values = (codes | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - (zero + 128.0).to(tl.bfloat16)[:, None]
        elif tl.float16 == DTYPE:  # 1024 + code is 0x6400 | code
            values = (codes | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - (zero + 1024.0).to(tl.float16)[:, None]
        else:
            values = codes.to(DTYPE) - zero.to(DTYPE)[:, None]
    return values


@triton.jit
def eight_bits(codes, zero, KIND: tl.constexpr, ZEROS: tl.constexpr, DTYPE: tl.constexpr):
    """int8, float8 or its bits [n, k], less `zero` [n] → DTYPE."""
    if KIND == "fp8_bits":  # e4m3's exponents start 120 below a float's
        bits = codes.to(tl.int32)
        values = (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True) * 1.329227995784916e36
        values = values.to(DTYPE)
    elif ZEROS == "":
        values = codes.to(DTYPE)
    else:
        values = (codes.to(tl.float32) - zero[:, None]).to(DTYPE)
    return values


@triton.jit
def zero_points(pointers, mask, CENTER: tl.constexpr, ZEROS: tl.constexpr):
    """float32 [n]"""
    if ZEROS == "":
        zero = tl.full(mask.shape, CENTER, tl.float32)
    else:
        zero = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    return zero


@triton.jit
def load_x(x_rows, k, num_in, EVEN_K: tl.constexpr):
    """[k, m]; rows past the last one repeat it, and their results are not stored."""
    if EVEN_K:
        x = tl.load(x_rows + k[:, None])
    else:
        x = tl.load(x_rows + k[:, None], mask=(k < num_in)[:, None], other=0.0)
    return x
