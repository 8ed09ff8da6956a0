// y = x W^T for a weight packed once: panels of 32 columns, [ceil(N / 32)][ceil(K / STEP)][32][STEP], padded with zeros.
// With PAIRED packing a panel holds 16 columns of the first half of W and the same 16 of the second (gate and up), so that the activation
// can be applied before anything is written.
#pragma once
#include "gemm.h"

constexpr int PANEL = 32;

enum Epilogue { STORE = 0, ADD = 1, ACT_MUL = 2 };

struct LinearArgs {
    const void* x;          // [rows, K], row stride x_stride
    const void* weight;     // packed
    const float* bias;      // [padded N] or null
    void* out;              // [rows, N] (ACT_MUL: [rows, N / 2]), row stride out_stride
    const void* residual;   // ADD: what is added, laid out as out; may be out
    int64_t x_stride, out_stride;
    int32_t rows, n, k;
    int32_t epilogue, activation;
    int32_t out_float;      // 1: out is float whatever the type of x
};

static INLINE int num_panels(int n) { return (n + PANEL - 1) / PANEL; }

template <class T> static int64_t packed_entries(int64_t n, int64_t k) {
    return (int64_t)num_panels((int)n) * PANEL * round_up((int)k, T::STEP);
}

template <class T> static void pack_weight(const typename T::E* w, int64_t stride, int n, int k, int paired, typename T::E* out, int tid, int threads) {
    int steps = (k + T::STEP - 1) / T::STEP;
    for (int p = tid; p < num_panels(n); p += threads) {
        typename T::E* panel = out + (ptrdiff_t)p * steps * PANEL * T::STEP;
        for (int c = 0; c < PANEL; c++) {
            int column = paired ? (c < W ? p * W + c : n / 2 + p * W + c - W) : p * PANEL + c;
            bool exists = paired ? p * W + c % W < n / 2 : column < n;
            for (int s = 0; s < steps; s++)
                for (int e = 0; e < T::STEP; e++) {
                    int at = s * T::STEP + e;
                    panel[((ptrdiff_t)s * PANEL + c) * T::STEP + e] = exists && at < k ? w[column * stride + at] : 0;
                }
        }
    }
}

// One row of results, 16 NV floats at c from `panel` on, to where they go.
template <class E> static INLINE void finish(const LinearArgs& g, int row, int column, int width, const float* c) {
    f32x16 v = load(c);
    if (g.bias) v = v + load(g.bias + column);
    ptrdiff_t at = (ptrdiff_t)row * g.out_stride + column;
    if (g.epilogue == ADD) {
        E rounded[W];  // the sum of two tensors of this type: rounded before it is added
        store(rounded, v);
        v = load(rounded) + load_at((const E*)g.residual + at, 0, width);
    }
    if (g.out_float) store_at((float*)g.out + at, 0, width, v);
    else store_at((E*)g.out + at, 0, width, v);
}

template <class E, int KIND> static INLINE void finish_pair(const LinearArgs& g, int row, int column, int width, const float* c) {
    f32x16 gate = load(c), up = load(c + W);
    if (g.bias) {
        gate = gate + load(g.bias + 2 * column);
        up = up + load(g.bias + 2 * column + W);
    }
    store_at((E*)g.out + (ptrdiff_t)row * g.out_stride + column, 0, width, activate<KIND>(gate) * up);
}

template <class E, int KIND> static void finish_pairs(const LinearArgs& g, int row, int rows, int panel, int panels, const float* c) {
    for (int m = 0; m < rows; m++)
        for (int p = 0; p < panels; p++) {
            int column = (panel + p) * W;
            if (column < g.n / 2) finish_pair<E, KIND>(g, row + m, column, g.n / 2 - column, c + (m * panels + p) * PANEL);
        }
}

template <class E> static void finish_block(const LinearArgs& g, int row, int rows, int panel, int panels, const float* c) {
    if (g.epilogue == ACT_MUL) {
        if (g.activation == SILU) finish_pairs<E, SILU>(g, row, rows, panel, panels, c);
        else if (g.activation == GELU_TANH) finish_pairs<E, GELU_TANH>(g, row, rows, panel, panels, c);
        else finish_pairs<E, GELU>(g, row, rows, panel, panels, c);
        return;
    }
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < 2 * panels; v++) {
            int column = panel * PANEL + v * W;
            if (column < g.n) finish<E>(g, row + m, column, g.n - column, c + (m * panels * 2 + v) * W);
        }
}

// `PANELS` (1 or 2) panels by a few rows.
template <class T, int PANELS> static INLINE void block(const LinearArgs& g, int row, int rows, int panel, int steps, const char* soon, ptrdiff_t soon_stride) {
    using E = typename T::E;
    float c[MAX_ROWS<2 * PANELS> * PANELS * PANEL];
    ptrdiff_t size = (ptrdiff_t)steps * PANEL * T::STEP;
    multiply<T, 2 * PANELS>({(const E*)g.x + row * g.x_stride, (const E*)g.weight + panel * size, g.x_stride, PANEL * T::STEP, size, steps, c,
                             PANELS * PANEL, false, soon, soon_stride}, rows);
    finish_block<E>(g, row, rows, panel, PANELS, c);
}

// Rows per pass: what of x stays in the second-level cache while all panels go by.
static INLINE int rows_per_pass(int k, int size) {
    int fit = (256 << 10) / (k * size);
    return fit < 48 ? 48 : fit / 12 * 12;
}

// Panels [first, last) and rows [from, to). With few rows memory is what takes time and a panel is read once; with more, later blocks of
// rows find the panel in the cache and fetch the next one in the meantime.
template <class T> static void linear_pass(const LinearArgs& g, int first, int last, int from, int to, int steps) {
    constexpr ptrdiff_t STEP_BYTES = PANEL * 4, LINE = 64;
    const char* weight = (const char*)g.weight;
    int rows = to - from, panel = first;
    if (rows <= MAX_ROWS<4>)
        for (; panel + 2 <= last; panel += 2) block<T, 2>(g, from, rows, panel, steps, weight, 0);
    for (; panel < last; panel++) {
        const char* soon = weight + (panel + 1) * steps * STEP_BYTES;
        bool more = rows > MAX_ROWS<2> && panel + 1 < last;
        for_row_blocks(rows, MAX_ROWS<2>, [&](int row, int count) {
            block<T, 1>(g, from + row, count, panel, steps, more ? soon : weight, more ? STEP_BYTES : 0);
            soon += LINE;
            more = more && soon < weight + (panel + 1) * steps * STEP_BYTES + STEP_BYTES;
        });
    }
}

// Panels [first, last) and rows [top, bottom) by one thread.
template <class T> static void linear_part(const LinearArgs& g, int first, int last, int top, int bottom) {
    int pass = rows_per_pass(g.k, sizeof(typename T::E)), passes = (bottom - top + pass - 1) / pass;
    for (int i = 0; i < passes; i++) {
        int from = top + (int)((int64_t)(bottom - top) * i / passes), to = top + (int)((int64_t)(bottom - top) * (i + 1) / passes);
        linear_pass<T>(g, first, last, from, to, (g.k + T::STEP - 1) / T::STEP);
    }
}

// One thread's share: panels first; where there are more threads than panels, rows too.
template <class T> static void linear(const LinearArgs& g, int tid, int threads) {
    int panels = num_panels(g.n);
    int across = threads < panels ? threads : panels, down = threads / across;
    if (down > (g.rows + 11) / 12) down = (g.rows + 11) / 12;
    if (down < 1) down = 1;
    int i = tid % across, j = tid / across;
    if (j >= down) return;
    linear_part<T>(g, panels * i / across, panels * (i + 1) / across, g.rows * j / down, g.rows * (j + 1) / down);
}
