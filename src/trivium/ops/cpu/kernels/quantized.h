// y = x W^T for weights of 4 or 8 bits with a scale, and perhaps a zero point, for each group of inputs.
//
// Codes lie in panels of 32 columns as in linear.h, [panel][step][32][STEP]; of 4-bit ones a byte holds an entry of the first half of a step in
// its low half, and one of the second half in its high one. A chunk of a panel is decoded to the type of x, unscaled and hence exact, into the
// first-level cache; its product is scaled once a group. So each row's result is the same whatever rows are computed with it.
#pragma once
#include <algorithm>
#include <vector>
#include "linear.h"

enum CodeKind { TABLE4 = 0, INT8_CODES = 1, FP8_CODES = 2 };

struct QuantizedWeight {
    const uint8_t* codes;  // packed
    const float* scales;   // [panels, K / group, 32]
    const float* zeros;    // the same, or null
    const float* table;    // TABLE4: 16 values
    int32_t group, kind;   // group: a multiple of 16 that divides K
};

using u8x16 = uint8_t __attribute__((vector_size(16)));
using u8x32 = uint8_t __attribute__((vector_size(32)));
using i8x16 = int8_t __attribute__((vector_size(16)));
using u16x32 = uint16_t __attribute__((vector_size(64)));

constexpr int DECODED = 128;        // inputs decoded at a time
constexpr int FEW_ROWS = 4;       // rows up to which codes are decoded anew for each of them: less than writing them down costs
constexpr int PASS_ROWS = 48;     // rows that share a decoded chunk

// Thirty-two floats to bf16, exactly: what is decoded has at most eight significant bits.
static INLINE f32x16 narrow(f32x16 first, f32x16 second) {
#ifdef __AVX512BF16__
    return (f32x16)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#else
    u16x16 halves[2] = {__builtin_convertvector(as_u32(first) >> 16, u16x16), __builtin_convertvector(as_u32(second) >> 16, u16x16)};
    f32x16 both;
    memcpy(&both, halves, 64);
    return both;
#endif
}

// A step's entries: 32 STEP codes to values, as two vectors of 64 bytes.
struct Two {
    f32x16 first, second;
};
template <class T, int KIND> struct Decoder8 {
    static constexpr int BYTES = PANEL * T::STEP;
    Decoder8(const float*) {}
    INLINE Two step(const uint8_t* codes) const {
        if constexpr (T::STEP == 1) return {sixteen(codes), sixteen(codes + W)};
        else return {narrow(sixteen(codes), sixteen(codes + W)), narrow(sixteen(codes + 2 * W), sixteen(codes + 3 * W))};
    }

private:
    static INLINE f32x16 sixteen(const uint8_t* codes) {
        i8x16 raw;
        memcpy(&raw, codes, 16);
#ifdef __AVX512F__
        i32x16 wide = (i32x16)_mm512_cvtepi8_epi32((__m128i)raw);
        if constexpr (KIND == INT8_CODES) return (f32x16)_mm512_cvtepi32_ps((__m512i)wide);
#else
        i32x16 wide = __builtin_convertvector(raw, i32x16);
        if constexpr (KIND == INT8_CODES) return __builtin_convertvector(wide, f32x16);
#endif
        // e4m3's exponents start 120 below a float's; the sign is in every bit above the eighth
        return as_f32((u32x16)(wide << 20) & 0x87f00000) * 0x1p120f;
    }
};

template <class T> struct Decoder4;
template <> struct Decoder4<F32> {
    static constexpr int BYTES = PANEL / 2;
    f32x16 table;
    Decoder4(const float* values) : table(load(values)) {}
    INLINE Two step(const uint8_t* codes) const {
        u8x16 raw;
        memcpy(&raw, codes, 16);
        i32x16 wide = __builtin_convertvector(raw, i32x16);
        return {__builtin_shuffle(table, wide & 15), __builtin_shuffle(table, wide >> 4)};
    }
};
template <> struct Decoder4<BF16> {
    static constexpr int BYTES = PANEL;
    u16x32 table;
    Decoder4(const float* values) {
        for (int i = 0; i < 32; i++) table[i] = from_float<bf16>(values[i % 16]);
    }
    INLINE Two step(const uint8_t* codes) const {
        u8x32 raw;
        memcpy(&raw, codes, 32);
        u16x32 wide = __builtin_convertvector(raw, u16x32);
        return {(f32x16)__builtin_shuffle(table, wide & 15), (f32x16)__builtin_shuffle(table, wide >> 4)};
    }
};

// One thread's panels for some rows.
template <class T, class E, class Decoder> struct QuantizedRun {
    using A = typename T::A;
    const LinearArgs& g;
    const QuantizedWeight& w;
    int from, rows;
    Decoder decoder;
    const float* sums;  // [rows, groups] of x, where there are zero points

    QuantizedRun(const LinearArgs& g, const QuantizedWeight& w, int from, int rows) : g(g), w(w), from(from), rows(rows), decoder(w.table) {
        static thread_local std::vector<float> room;
        sums = nullptr;
        if (!w.zeros) return;
        room.resize((size_t)rows * groups());
        for (int row = 0; row < rows; row++) sum_groups(x(row), room.data() + (ptrdiff_t)row * groups());
        sums = room.data();
    }
    // Of panels [first, last).
    void run(int first, int last) const {
        alignas(64) float total[2][PASS_ROWS * PANEL];
        int panel = first;
        for (; rows <= FEW_ROWS && panel + 2 <= last; panel += 2) {
            product_of_few(panel, panel + 1, total[0], total[1]);
            store_panel(panel, total[0]);
            store_panel(panel + 1, total[1]);
        }
        for (; panel < last; panel++) {
            product(panel, total[0]);
            store_panel(panel, total[0]);
        }
    }
    void store_panel(int panel, const float* total) const {
        for (int row = 0; row < rows; row++)
            for (int v = 0; v < PANEL && panel * PANEL + v < g.n; v += W) finish<E>(g, from + row, panel * PANEL + v, total + row * PANEL + v);
    }
    void run_gated(int panel) const {
        alignas(64) float gate[PASS_ROWS * PANEL], up[PASS_ROWS * PANEL];
        int up_panel = panel + g.n / 2 / PANEL;
        if (rows <= FEW_ROWS) {
            product_of_few(panel, up_panel, gate, up);
        } else {
            product(panel, gate);
            product(up_panel, up);
        }
        for (int row = 0; row < rows; row++)
            for (int v = 0; v < PANEL; v += W) {
                int at = row * PANEL + v, column = panel * PANEL + v;
                if (g.activation == SILU) finish_gated<E, SILU>(g, from + row, column, gate + at, up + at);
                else if (g.activation == GELU_TANH) finish_gated<E, GELU_TANH>(g, from + row, column, gate + at, up + at);
                else finish_gated<E, GELU>(g, from + row, column, gate + at, up + at);
            }
    }

private:
    int groups() const { return g.k / w.group; }
    const A* x(int row) const { return (const A*)g.x + (from + row) * g.x_stride; }
    void sum_groups(const A* row, float* out) const {
        for (int group = 0; group < groups(); group++, row += w.group) {
            f32x16 all = {};
            for (int i = 0; i < w.group; i += W) all = all + load(row + i);
            out[group] = sum(all);
        }
    }
    void product(int panel, float* total) const {
        alignas(64) typename T::B values[DECODED * PANEL];
        alignas(64) float part[PASS_ROWS * PANEL];
        std::fill_n(total, rows * PANEL, 0.f);
        const uint8_t* codes = w.codes + (ptrdiff_t)panel * (g.k / T::STEP) * Decoder::BYTES;
        for (int group = 0; group < groups(); group++) {
            for (int at = 0; at < w.group; at += DECODED) {
                int steps = (w.group - at < DECODED ? w.group - at : DECODED) / T::STEP;
                for (int i = 0; i < steps; i++) {
                    Two decoded = decoder.step(codes + i * Decoder::BYTES);
                    memcpy(values + i * PANEL * T::STEP, &decoded, 128);
                }
                codes += (ptrdiff_t)steps * Decoder::BYTES;
                Product<T> p{x(0) + group * w.group + at, values, (ptrdiff_t)g.x_stride, PANEL * T::STEP, W * T::STEP, 0, steps, part, PANEL, at > 0,
                             (const char*)codes, Decoder::BYTES};
                multiply_all<T, 2>(p, rows);
            }
            add(part, total, panel, group);
        }
    }
    // Two panels at once, codes decoded in registers: the same sums in the same order.
    template <int ROWS> void product_of(int one, int other, float* one_total, float* other_total) const {
        alignas(64) float part[2][ROWS * PANEL];
        std::fill_n(one_total, ROWS * PANEL, 0.f);
        std::fill_n(other_total, ROWS * PANEL, 0.f);
        ptrdiff_t size = (ptrdiff_t)(g.k / T::STEP) * Decoder::BYTES;
        const uint8_t *a = w.codes + one * size, *b = w.codes + other * size;
        for (int group = 0; group < groups(); group++) {
            f32x16 sums[ROWS][4] = {};
            for (int i = 0; i < w.group / T::STEP; i++, a += Decoder::BYTES, b += Decoder::BYTES) {
                Two first = decoder.step(a), second = decoder.step(b);
                const A* at = x(0) + group * w.group + i * T::STEP;
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; row++) {
                    const A* own = at + row * g.x_stride;
                    sums[row][0] = T::dot(sums[row][0], own, first.first);
                    sums[row][1] = T::dot(sums[row][1], own, first.second);
                    sums[row][2] = T::dot(sums[row][2], own, second.first);
                    sums[row][3] = T::dot(sums[row][3], own, second.second);
                }
            }
            for (int row = 0; row < ROWS; row++)
                for (int v = 0; v < 4; v++) store(part[v / 2] + row * PANEL + v % 2 * W, sums[row][v]);
            add(part[0], one_total, one, group);
            add(part[1], other_total, other, group);
        }
    }
    void product_of_few(int one, int other, float* one_total, float* other_total) const {
        if (rows == 1) product_of<1>(one, other, one_total, other_total);
        else if (rows == 2) product_of<2>(one, other, one_total, other_total);
        else if (rows == 3) product_of<3>(one, other, one_total, other_total);
        else product_of<4>(one, other, one_total, other_total);
    }
    void add(const float* part, float* total, int panel, int group) const {
        ptrdiff_t at = ((ptrdiff_t)panel * groups() + group) * PANEL;
        for (int v = 0; v < PANEL; v += W) {
            f32x16 scale = load(w.scales + at + v), zero = w.zeros ? load(w.zeros + at + v) : f32x16{};
            for (int row = 0; row < rows; row++) {
                f32x16 sum = load(part + row * PANEL + v);
                if (w.zeros) sum = sum - zero * sums[(ptrdiff_t)row * groups() + group];
                store(total + row * PANEL + v, load(total + row * PANEL + v) + sum * scale);
            }
        }
    }
};

// How the product is cut: runs of panels (gated: of pairs of them) by some rows.
static inline Units cut_quantized(const LinearArgs& g, int threads) {
    int panels = num_panels(g.n) / (g.epilogue == ACT_MUL ? 2 : 1), passes = (g.rows + PASS_ROWS - 1) / PASS_ROWS;
    int groups = 4 * threads < panels ? 4 * threads : panels;
    return {panels, groups, passes};
}

template <class T, class E, class Decoder> static void quantized_run(const LinearArgs& g, const QuantizedWeight& w, const Units& units, int unit) {
    int pass = unit / units.groups, group = unit % units.groups;
    int from = (int)((int64_t)g.rows * pass / units.passes), to = (int)((int64_t)g.rows * (pass + 1) / units.passes);
    QuantizedRun<T, E, Decoder> run(g, w, from, to - from);
    int first = (int)((int64_t)units.panels * group / units.groups), last = (int)((int64_t)units.panels * (group + 1) / units.groups);
    if (g.epilogue != ACT_MUL) run.run(first, last);
    else
        for (int panel = first; panel < last; panel++) run.run_gated(panel);
}

// x has type T::A, out E.
template <class T, class E> static void quantized_unit(const LinearArgs& g, const QuantizedWeight& w, const Units& units, int unit) {
    if (w.kind == TABLE4) quantized_run<T, E, Decoder4<T>>(g, w, units, unit);
    else if (w.kind == INT8_CODES) quantized_run<T, E, Decoder8<T, INT8_CODES>>(g, w, units, unit);
    else quantized_run<T, E, Decoder8<T, FP8_CODES>>(g, w, units, unit);
}
