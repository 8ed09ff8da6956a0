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

template <class E> static void rms_norm_row(const NormArgs& g, int row) {
    const E* x = (const E*)g.x + row * g.x_stride;
    if (g.residual) {
        E* residual = (E*)g.residual + row * g.residual_stride;
        for (int i = 0; i < g.n; i += W) store_at(residual, i, g.n, load_at(x, i, g.n) + load_at(residual, i, g.n));
        x = residual;
    }
    norm_row(x, (const E*)g.weight, (E*)g.out + row * g.out_stride, g.n, g.eps, g.offset);
}

template <class E, int KIND> static INLINE void act_row(const E* x, E* out, int n) {
    for (int i = 0; i < n; i += W) store_at(out, i, n, activate<KIND>(load_at(x, i, n)) * load_at(x + n, i, n));
}
template <class E> static void act_and_mul_row(const E* x, E* out, int n, int kind) {
    if (kind == SILU) act_row<E, SILU>(x, out, n);
    else if (kind == GELU_TANH) act_row<E, GELU_TANH>(x, out, n);
    else act_row<E, GELU>(x, out, n);
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

// The part of a row that belongs to one KV head: its query heads, its key, its value. False, and nothing done, if the row's position or slot
// lies outside its table.
template <class E> static bool prepare_qkv(const QKVArgs& g, int row, int kv_head) {
    int64_t position = g.positions[row], slot = g.slots[row];
    if ((g.cos_sin && (position < 0 || position >= g.max_positions)) || slot < -1 || slot >= g.num_slots) return false;
    const float* cos = g.cos_sin ? g.cos_sin + position * g.rotary_dim : nullptr;
    const E* x = (const E*)g.qkv + row * g.qkv_stride;
    int group = g.heads / g.kv_heads;
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++)
        prepare_head(x + h * g.dim, (E*)g.query + ((ptrdiff_t)row * g.heads + h) * g.dim, (const E*)g.q_norm, cos, g);
    if (slot < 0) return true;
    ptrdiff_t at = ((slot / g.block_size * g.kv_heads + kv_head) * g.block_size + slot % g.block_size) * g.dim;
    prepare_head(x + (g.heads + kv_head) * g.dim, (E*)g.key + at, (const E*)g.k_norm, cos, g);
    memcpy((E*)g.value + at, x + (g.heads + g.kv_heads + kv_head) * g.dim, g.dim * sizeof(E));
    return true;
}
template <class E> static bool prepare_qkv(const QKVArgs& g, int row) {
    bool good = true;
    for (int h = 0; h < g.kv_heads; h++) good &= prepare_qkv<E>(g, row, h);
    return good;
}
