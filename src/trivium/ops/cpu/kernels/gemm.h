// The product every kernel here is made of: a few rows of A, as they are, times a panel of B, packed so that each vector load serves
// sixteen columns. The sum over k runs in order, one product after the other (bf16: one pair after the other), in a register of its own
// for each output: a result doesn't depend on how many rows or columns are computed with it.
#pragma once
#include <utility>
#include "vec.h"

// Types of a product: A and B, their entries; STEP, how many entries of a row go into one product of a 32-bit lane; V, sixteen sums.
struct F32 {
    using A = float;
    using B = float;
    using V = f32x16;
    static constexpr int STEP = 1;
    static INLINE V dot(V acc, const A* a, V b) { return acc + splat(*a) * b; }
};
struct BF16 {
    using A = bf16;
    using B = bf16;
    using V = f32x16;
    static constexpr int STEP = 2;
    static INLINE V dot(V acc, const A* a, V b) {
        uint32_t pair;
        memcpy(&pair, a, 4);
#ifdef __AVX512BF16__
        return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)(__m512)b);
#else
        u32x16 bits = as_u32(b), both = pair - u32x16{};
        acc = acc + as_f32(both << 16) * as_f32(bits << 16);
        return acc + as_f32(both & 0xffff0000) * as_f32(bits & 0xffff0000);
#endif
    }
};
struct Int8 {  // A is a signed number plus 128, because the instruction wants one side unsigned
    using A = uint8_t;
    using B = int8_t;
    using V = i32x16;
    static constexpr int STEP = 4;
    static INLINE V dot(V acc, const A* a, V b) {
        uint32_t four;
        memcpy(&four, a, 4);
#ifdef __AVX512VNNI__
        return (V)_mm512_dpbusd_epi32((__m512i)acc, _mm512_set1_epi32((int)four), (__m512i)b);
#else
        for (int i = 0; i < 4; i++) acc = acc + (int32_t)(four >> 8 * i & 255) * (b << (24 - 8 * i) >> 24);
        return acc;
#endif
    }
};

constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }

// C[m, n] (+)= A[m, :] . B[:, n] for MR rows and 16 NV columns. Vector v of a step lies at b + v / 2 * panel + v % 2 * pitch; the next step is
// `stride` entries on.
template <class T> struct Product {
    const typename T::A* a;
    const typename T::B* b;
    ptrdiff_t lda, stride, pitch, panel;
    int steps;
    void* c;  // [rows, ldc], 32 bits each
    ptrdiff_t ldc;
    bool accumulate;
    const char* soon;       // what will be needed next: fetched along the way, soon_stride bytes a step (0: nothing)
    ptrdiff_t soon_stride;
};

template <class T, int MR, int NV> static void multiply(const Product<T>& p) {
    using V = typename T::V;
    V acc[MR][NV];
    char* c = (char*)p.c;
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) {
            acc[m][v] = V{};
            if (p.accumulate) memcpy(&acc[m][v], c + (m * p.ldc + v * W) * 4, 64);
        }
    const typename T::A* a = p.a;
    const typename T::B* b = p.b;
    for (int k = 0; k < p.steps; k++, a += T::STEP, b += p.stride) {
        __builtin_prefetch(p.soon + k * p.soon_stride, 0, 2);
        V column[NV];
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) memcpy(&column[v], b + v / 2 * p.panel + v % 2 * p.pitch, 64);
#pragma GCC unroll 12
        for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
            for (int v = 0; v < NV; v++) acc[m][v] = T::dot(acc[m][v], a + m * p.lda, column[v]);
    }
#pragma GCC unroll 12
    for (int m = 0; m < MR; m++)
#pragma GCC unroll 4
        for (int v = 0; v < NV; v++) memcpy(c + (m * p.ldc + v * W) * 4, &acc[m][v], 64);
}

template <class T, int NV, int... M> static INLINE void multiply_rows(const Product<T>& p, int rows, std::integer_sequence<int, M...>) {
    using Function = void (*)(const Product<T>&);
    static constexpr Function functions[] = {multiply<T, M + 1, NV>...};
    functions[rows - 1](p);
}

// Rows of one product by the vectors it takes at a time: 24 accumulators of the 32 registers.
template <int NV> constexpr int MAX_ROWS = NV == 4 ? 6 : 12;

template <class T, int NV> static INLINE void multiply(const Product<T>& p, int rows) {
    multiply_rows<T, NV>(p, rows, std::make_integer_sequence<int, MAX_ROWS<NV>>{});
}

// body(first row, rows) for runs of rows as equal as can be, of at most `most` rows each.
template <class Body> static INLINE void for_row_blocks(int rows, int most, Body&& body) {
    int blocks = (rows + most - 1) / most;
    for (int i = 0, done = 0; i < blocks; i++) {
        int size = (rows - done + blocks - i - 1) / (blocks - i);
        body(done, size);
        done += size;
    }
}

// All rows of a product, NV vectors wide.
template <class T, int NV> static void multiply_all(Product<T> p, int rows) {
    const typename T::A* a = p.a;
    char* c = (char*)p.c;
    for_row_blocks(rows, MAX_ROWS<NV>, [&](int first, int count) {
        p.a = a + first * p.lda;
        p.c = c + first * p.ldc * 4;
        multiply<T, NV>(p, count);
    });
}
