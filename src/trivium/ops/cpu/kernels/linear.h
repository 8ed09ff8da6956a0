// y = x W^T for a weight packed once: panels of 32 columns, [ceil(N / 32)][ceil(K / STEP)][32][STEP], padded with zeros.
// Work is cut into units (a few panels by some rows) that threads take one by one.
#pragma once
#include "gemm.h"

constexpr int PANEL = 32;

enum Epilogue {
    STORE = 0,
    ADD = 1,      // out = residual + y
    ACT_MUL = 2,  // W is gate and up, one above the other, N / 2 a multiple of 32: out = act(gate) * up
};

struct LinearArgs {
    const void* x;          // [rows, K], row stride x_stride; entries up to the next multiple of STEP are read, and count nothing
    const void* weight;     // packed
    const float* bias;      // [padded N] or null
    void* out;              // [rows, N] (ACT_MUL: [rows, N / 2]), row stride out_stride
    const void* residual;   // ADD: what is added, laid out as out; may be out
    const float* x_scale;   // int8: [rows], else null
    const float* w_scale;   // int8: [padded N], else null
    const int32_t* w_sum;   // int8: [padded N], 128 times each column's sum: what adding 128 to x brought in
    int64_t x_stride, out_stride;
    int32_t rows, n, k;
    int32_t epilogue, activation;
    int32_t out_float;      // 1: out is float whatever the type of x
};

static INLINE int num_panels(int n) { return (n + PANEL - 1) / PANEL; }

template <class T> static int64_t packed_entries(int64_t n, int64_t k) {
    return (int64_t)num_panels((int)n) * PANEL * round_up((int)k, T::STEP);
}

template <class T> static void pack_panel(const typename T::B* w, int64_t stride, int n, int k, typename T::B* out, int panel) {
    int steps = (k + T::STEP - 1) / T::STEP;
    typename T::B* to = out + (ptrdiff_t)panel * steps * PANEL * T::STEP;
    for (int c = 0; c < PANEL; c++) {
        int column = panel * PANEL + c;
        for (int at = 0; at < steps * T::STEP; at++)
            to[((ptrdiff_t)(at / T::STEP) * PANEL + c) * T::STEP + at % T::STEP] = column < n && at < k ? w[column * stride + at] : 0;
    }
}

// A row of activations to int8 plus 128, and its scale: symmetric, the largest magnitude becomes 127. Padded to a multiple of 4.
template <class E> static INLINE float quantize_row(const E* x, int n, uint8_t* out) {
    f32x16 top = {};
    for (int i = 0; i < n; i += W) {
        f32x16 v = load_at(x, i, n);
        top = vmax(select(v < 0.f, -v, v), top);
    }
    float largest = maximum(top), scale = largest / 127.f, inverse = largest > 0.f ? 127.f / largest : 0.f;
    for (int i = 0; i < n; i += W) {
        // To nearest, ties to even, by adding 1.5 * 2^23; the low byte of the sum is the number, plus 128 to make it unsigned.
        u32x16 bits = as_u32(load_at(x, i, n) * inverse + (12582912.f + 128.f));
        using u8x16 = uint8_t __attribute__((vector_size(16)));
        u8x16 bytes = __builtin_convertvector(bits & 255, u8x16);
        memcpy(out + i, &bytes, n - i < W ? round_up(n - i, 4) : W);
    }
    return scale;
}

// Sums of int8 products to numbers, in place.
static INLINE void dequantize(const LinearArgs& g, int row, int column, void* c) {
    i32x16 sums, offset;
    memcpy(&sums, c, 64);
    memcpy(&offset, g.w_sum + column, 64);
    store((float*)c, __builtin_convertvector(sums - offset, f32x16) * (load(g.w_scale + column) * g.x_scale[row]));
}

// Sixteen results of one row, at c, to where they go.
template <class E> static INLINE void finish(const LinearArgs& g, int row, int column, const float* c) {
    int width = g.n - column;
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

template <class E, int KIND> static INLINE void finish_gated(const LinearArgs& g, int row, int column, const float* gate_at, const float* up_at) {
    f32x16 gate = load(gate_at), up = load(up_at);
    if (g.bias) {
        gate = gate + load(g.bias + column);
        up = up + load(g.bias + g.n / 2 + column);
    }
    store((E*)g.out + (ptrdiff_t)row * g.out_stride + column, activate<KIND>(gate) * up);
}

// A block of results: rows by 16 VECTORS columns; with ACT_MUL the first half of a row of c is gate, the second up.
template <class T, class E, int VECTORS> static void finish_block(const LinearArgs& g, int row, int rows, int column, float* c) {
    constexpr int WIDTH = VECTORS * W;
    bool gated = g.epilogue == ACT_MUL;
    for (int m = 0; m < rows; m++, c += WIDTH) {
        if constexpr (T::STEP == 4)
            for (int v = 0; v < VECTORS; v++) {
                bool is_up = gated && v >= VECTORS / 2;
                int at = is_up ? g.n / 2 + column + (v - VECTORS / 2) * W : column + v * W;
                if (at < g.n) dequantize(g, row + m, at, c + v * W);
            }
        if (!gated) {
            for (int v = 0; v < VECTORS && column + v * W < g.n; v++) finish<E>(g, row + m, column + v * W, c + v * W);
            continue;
        }
        for (int v = 0; v < VECTORS / 2; v++) {
            const float *gate = c + v * W, *up = gate + WIDTH / 2;
            if (g.activation == SILU) finish_gated<E, SILU>(g, row + m, column + v * W, gate, up);
            else if (g.activation == GELU_TANH) finish_gated<E, GELU_TANH>(g, row + m, column + v * W, gate, up);
            else finish_gated<E, GELU>(g, row + m, column + v * W, gate, up);
        }
    }
}

// How a product is cut: `groups` of panels times `passes` over rows. With ACT_MUL a panel of gate counts with its panel of up as one.
struct Units {
    int panels, groups, passes;
    int count() const { return groups * passes; }
};

static INLINE Units cut(const LinearArgs& g, int entry_size, int threads) {
    int panels = num_panels(g.epilogue == ACT_MUL ? g.n / 2 : g.n);
    // What of x a pass covers stays in the second-level cache while all panels go by.
    int fit = (256 << 10) / (g.k * entry_size) / 12 * 12, pass = fit < 48 ? 48 : fit;
    int passes = (g.rows + pass - 1) / pass;
    int groups = 4 * threads / (passes ? passes : 1);
    if (groups < threads) groups = threads;
    int most = g.rows <= MAX_ROWS<4> ? (panels + 1) / 2 : panels;  // few rows: two panels at a time
    if (groups > most) groups = most;
    if (groups * passes < 2 * threads && g.rows > MAX_ROWS<2>) {
        int blocks = (g.rows + MAX_ROWS<2> - 1) / MAX_ROWS<2>;
        passes = (2 * threads + groups - 1) / groups;
        if (passes > blocks) passes = blocks;
    }
    return {panels, groups, passes};
}

// One thread's run over panels [first, last) and rows [from, from + rows).
template <class T, class E> struct LinearRun {
    using A = typename T::A;
    using B = typename T::B;
    const LinearArgs& g;
    int from, rows, first, last, steps;
    ptrdiff_t size;  // entries of a panel
    bool gated;

    LinearRun(const LinearArgs& g, const Units& units, int unit) : g(g) {
        int pass = unit / units.groups, group = unit % units.groups;
        from = (int)((int64_t)g.rows * pass / units.passes);
        rows = (int)((int64_t)g.rows * (pass + 1) / units.passes) - from;
        bool in_pairs = g.rows <= MAX_ROWS<4>;
        int things = in_pairs ? (units.panels + 1) / 2 : units.panels, each = in_pairs ? 2 : 1;
        first = (int)((int64_t)things * group / units.groups) * each;
        last = (int)((int64_t)things * (group + 1) / units.groups) * each;
        if (last > units.panels) last = units.panels;
        steps = (g.k + T::STEP - 1) / T::STEP;
        size = (ptrdiff_t)steps * PANEL * T::STEP;
        gated = g.epilogue == ACT_MUL;
    }
    const B* panel_at(int panel) const { return (const B*)g.weight + panel * size; }
    ptrdiff_t up() const { return (ptrdiff_t)(g.n / 2 / PANEL) * size; }
    const A* row_at(int row) const { return (const A*)g.x + (ptrdiff_t)row * g.x_stride; }

    // Few rows: memory is what takes time, each panel is read once, in two streams.
    void wide(int panel) const {
        alignas(64) float c[MAX_ROWS<4> * 4 * W];
        multiply<T, 4>({row_at(from), panel_at(panel), g.x_stride, PANEL * T::STEP, W * T::STEP, gated ? up() : size, steps, c, 4 * W, false,
                        (const char*)g.weight, 0}, rows);
        finish_block<T, E, 4>(g, from, rows, panel * PANEL, c);
    }
    // More rows: from the second block on the panel is in the cache, and the next one is fetched in the meantime, a line a step.
    void narrow(int half) const {  // of a panel (gated: of panels of gate and up), 16 columns; else a whole panel is two halves at once
        int panel = gated ? half / 2 : half, column = panel * PANEL + (gated ? half % 2 * W : 0);
        const B* b = panel_at(panel) + (gated ? half % 2 * W * T::STEP : 0);
        const B* next = gated && half % 2 == 0 ? b + W * T::STEP : panel_at(panel + 1);
        const B* lines[2] = {next, next + (gated ? up() : W * T::STEP)};
        bool is_last = panel + 1 >= last && !(gated && half % 2 == 0);
        int done = 0;
        for_row_blocks(rows, MAX_ROWS<2>, [&](int row, int count) {
            alignas(64) float c[MAX_ROWS<2> * 2 * W];
            bool fetch = done < 2 && !is_last && rows > MAX_ROWS<2>;
            multiply<T, 2>({row_at(from + row), b, g.x_stride, PANEL * T::STEP, gated ? up() : W * T::STEP, 0, steps, c, 2 * W, false,
                            (const char*)(fetch ? lines[done] : g.weight), fetch ? PANEL * T::STEP * (ptrdiff_t)sizeof(B) : 0}, count);
            finish_block<T, E, 2>(g, from + row, count, column, c);
            done++;
        });
    }
    void run() const {
        int panel = first;
        if (rows <= MAX_ROWS<4>)
            for (; gated ? panel < last : panel + 2 <= last; panel += gated ? 1 : 2) wide(panel);
        for (; panel < last; panel++)
            if (gated) {
                narrow(2 * panel);
                narrow(2 * panel + 1);
            } else narrow(panel);
    }
};

// E: the type of what goes out.
template <class T, class E> static void linear_unit(const LinearArgs& g, const Units& units, int unit) { LinearRun<T, E>(g, units, unit).run(); }
