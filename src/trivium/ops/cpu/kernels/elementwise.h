// Norms, the gated activation, rotation and the write into the paged cache: memory-bound work, one pass each.
#pragma once
#include "vec.h"

struct NormArgs {
    const void* x;       // [rows, n]
    void* residual;      // null, or [rows, n]: becomes x + residual, which is then normed
    const void* weight;  // [n]
    void* out;           // [rows, n]
    int64_t x_stride, residual_stride, out_stride;
    int32_t rows, n;
    float eps, offset;
};

template <class E> static INLINE float inverse_rms(const E* x, int n, float eps) {
    f32x16 squares = {};
    for (int i = 0; i < n; i += W) {
        f32x16 v = load_at(x, i, n);
        squares = squares + v * v;
    }
    return 1.f / std::sqrt(sum(squares) / (float)n + eps);
}

template <class E> static INLINE void norm_row(const E* x, const E* weight, E* out, int n, float eps, float offset) {
    float scale = inverse_rms(x, n, eps);
    for (int i = 0; i < n; i += W) store_at(out, i, n, load_at(x, i, n) * scale * (load_at(weight, i, n) + offset));
}

template <class E> static void rms_norm(const NormArgs& g, int tid, int threads) {
    for (int row = g.rows * tid / threads; row < g.rows * (tid + 1) / threads; row++) {
        const E* x = (const E*)g.x + row * g.x_stride;
        if (g.residual) {
            E* residual = (E*)g.residual + row * g.residual_stride;
            for (int i = 0; i < g.n; i += W) store_at(residual, i, g.n, load_at(x, i, g.n) + load_at(residual, i, g.n));
            x = residual;
        }
        norm_row(x, (const E*)g.weight, (E*)g.out + row * g.out_stride, g.n, g.eps, g.offset);
    }
}

template <class E, int KIND> static void act_rows(const E* x, int64_t stride, E* out, int from, int to, int n) {
    for (int row = from; row < to; row++)
        for (int i = 0; i < n; i += W)
            store_at(out + (ptrdiff_t)row * n, i, n, activate<KIND>(load_at(x + row * stride, i, n)) * load_at(x + row * stride + n, i, n));
}
template <class E> static void act_and_mul(const E* x, int64_t stride, E* out, int rows, int n, int kind, int tid, int threads) {
    int from = rows * tid / threads, to = rows * (tid + 1) / threads;
    if (kind == SILU) act_rows<E, SILU>(x, stride, out, from, to, n);
    else if (kind == GELU_TANH) act_rows<E, GELU_TANH>(x, stride, out, from, to, n);
    else act_rows<E, GELU>(x, stride, out, from, to, n);
}

struct QKVArgs {
    const void* qkv;           // [rows, (heads + 2 kv_heads) * dim], row stride qkv_stride
    const float* cos_sin;      // [max_positions, rotary_dim] or null
    const int64_t* positions;  // [rows]
    const int64_t* slots;      // [rows]; -1: not written
    const void *q_norm, *k_norm;  // [dim] or null
    void *key, *value;         // [num_blocks, kv_heads, block_size, dim]
    void* query;               // [rows, heads, dim]
    int64_t qkv_stride, num_slots, max_positions;
    int32_t rows, heads, kv_heads, dim, block_size, rotary_dim, interleaved;
    float eps, offset;
};

// x and out [dim]; the rotation of one head. Rounds where the reference does: the parts that are not rotated are copied.
template <class E> static INLINE void rotate_head(const E* x, E* out, const float* cos, const QKVArgs& g) {
    int half = g.rotary_dim / 2;
    const float* sin = cos + half;
    if (g.interleaved) {
        for (int i = 0; i < half; i++) {
            float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
            out[2 * i] = from_float<E>(a * cos[i] - b * sin[i]);
            out[2 * i + 1] = from_float<E>(b * cos[i] + a * sin[i]);
        }
    } else {
        for (int i = 0; i < half; i += W) {
            f32x16 a = load_at(x, i, half), b = load_at(x + half, i, half), c = load_at(cos, i, half), s = load_at(sin, i, half);
            store_at(out, i, half, a * c - b * s);
            store_at(out + half, i, half, b * c + a * s);
        }
    }
    if (g.rotary_dim < g.dim) memmove(out + g.rotary_dim, x + g.rotary_dim, (g.dim - g.rotary_dim) * sizeof(E));
}

template <class E> static INLINE void prepare_head(const E* x, E* out, const E* norm, const float* cos, const QKVArgs& g) {
    constexpr int MAX_DIM = 1024;
    E normed[MAX_DIM];
    if (norm) {
        norm_row(x, norm, normed, g.dim, g.eps, g.offset);
        x = normed;
    }
    if (cos) rotate_head(x, out, cos, g);
    else memcpy(out, x, g.dim * sizeof(E));
}

// Returns 1 if a position or slot lies outside its table; such a row is left out.
template <class E> static int prepare_qkv(const QKVArgs& g, int tid, int threads) {
    int bad = 0;
    for (int row = g.rows * tid / threads; row < g.rows * (tid + 1) / threads; row++) {
        const E* x = (const E*)g.qkv + row * g.qkv_stride;
        int64_t position = g.positions[row], slot = g.slots[row];
        if ((g.cos_sin && (position < 0 || position >= g.max_positions)) || slot < -1 || slot >= g.num_slots) {
            bad = 1;
            continue;
        }
        const float* cos = g.cos_sin ? g.cos_sin + position * g.rotary_dim : nullptr;
        for (int h = 0; h < g.heads; h++, x += g.dim)
            prepare_head(x, (E*)g.query + ((ptrdiff_t)row * g.heads + h) * g.dim, (const E*)g.q_norm, cos, g);
        if (slot < 0) continue;
        ptrdiff_t block = slot / g.block_size, offset = slot % g.block_size;
        for (int h = 0; h < g.kv_heads; h++, x += g.dim) {
            ptrdiff_t at = ((block * g.kv_heads + h) * g.block_size + offset) * g.dim;
            prepare_head(x, (E*)g.key + at, (const E*)g.k_norm, cos, g);
            memcpy((E*)g.value + at, x + (ptrdiff_t)g.kv_heads * g.dim, g.dim * sizeof(E));
        }
    }
    return bad;
}
