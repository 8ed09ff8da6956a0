// Sixteen floats at a time, in GCC's vector extensions: one source for every CPU, compiled for the one it runs on. Only the products
// of bf16 pairs and of int8 quadruples have versions of their own, chosen by the macros that -march=native sets.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));
using u32x16 = uint32_t __attribute__((vector_size(64)));
using u16x16 = uint16_t __attribute__((vector_size(32)));
using bf16 = uint16_t;  // the upper half of a float

constexpr int W = 16;  // floats in a vector

static INLINE f32x16 splat(float x) { return x - f32x16{}; }
static INLINE f32x16 as_f32(u32x16 x) { return (f32x16)x; }
static INLINE u32x16 as_u32(f32x16 x) { return (u32x16)x; }
static INLINE f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) { return mask ? yes : no; }
static INLINE f32x16 vmax(f32x16 a, f32x16 b) { return select(a > b, a, b); }
static INLINE f32x16 vmin(f32x16 a, f32x16 b) { return select(a < b, a, b); }
static INLINE i32x16 lanes() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

static INLINE float to_float(float x) { return x; }
static INLINE float to_float(bf16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
template <class E> E from_float(float x);
template <> INLINE float from_float<float>(float x) { return x; }
template <> INLINE bf16 from_float<bf16>(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return (bf16)((bits >> 16) | 0x40);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

static INLINE f32x16 load(const float* p) {
    f32x16 v;
    memcpy(&v, p, 64);
    return v;
}
static INLINE f32x16 load(const bf16* p) {
#ifdef __AVX512F__
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#else
    u16x16 v;
    memcpy(&v, p, 32);
    return as_f32(__builtin_convertvector(v, u32x16) << 16);
#endif
}
static INLINE void store(float* p, f32x16 v) { memcpy(p, &v, 64); }
static INLINE void store(bf16* p, f32x16 v) {
#ifdef __AVX512BF16__
    __m256bh h = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &h, 32);
#else
    u32x16 bits = as_u32(v);
    u32x16 rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    u32x16 quiet = (bits >> 16) | 0x40;
    u16x16 h = __builtin_convertvector((u32x16)select(v == v, as_f32(rounded), as_f32(quiet)), u16x16);
    memcpy(p, &h, 32);
#endif
}

// The first n < 16 entries; the rest reads as zero and is not written.
template <class E> static INLINE f32x16 load_n(const E* p, int n) {
    E full[W] = {};
    memcpy(full, p, n * sizeof(E));
    return load(full);
}
template <class E> static INLINE void store_n(E* p, f32x16 v, int n) {
    E full[W];
    store(full, v);
    memcpy(p, full, n * sizeof(E));
}
// f(offset, load, store) over a run of n entries, the last one partial.
template <class E> static INLINE f32x16 load_at(const E* p, int i, int n) { return n - i >= W ? load(p + i) : load_n(p + i, n - i); }
template <class E> static INLINE void store_at(E* p, int i, int n, f32x16 v) {
    if (n - i >= W) store(p + i, v);
    else store_n(p + i, v, n - i);
}

// In halves, in registers: the same order of additions everywhere.
template <class F> static INLINE float reduce(f32x16 v, F&& f) {
    v = f(v, __builtin_shuffle(v, i32x16{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
    v = f(v, __builtin_shuffle(v, i32x16{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
    v = f(v, __builtin_shuffle(v, i32x16{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
    v = f(v, __builtin_shuffle(v, i32x16{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
    return v[0];
}
static INLINE float sum(f32x16 v) {
    return reduce(v, [](f32x16 a, f32x16 b) INLINE_LAMBDA { return a + b; });
}
static INLINE float maximum(f32x16 v) {
    return reduce(v, [](f32x16 a, f32x16 b) INLINE_LAMBDA { return vmax(a, b); });
}

// e^x within 2 units in the last place for -87 < x < 88; 0 below (where results are denormal), at most e^88.3 above, NaN stays.
// Cody and Waite's reduction to |r| <= ln 2 / 2, then the Taylor polynomial of degree 7.
static INLINE f32x16 vexp(f32x16 x) {
    f32x16 clamped = select(x < -87.f, splat(-87.f), x);
    clamped = select(clamped > 88.3f, splat(88.3f), clamped);
    f32x16 shifted = clamped * 1.44269504f + 12582912.f;  // 1.5 * 2^23: rounds to an integer in the low bits
    f32x16 n = shifted - 12582912.f;
    f32x16 r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    f32x16 p = r * (1.f / 5040) + (1.f / 720);
    p = p * r + (1.f / 120);
    p = p * r + (1.f / 24);
    p = p * r + (1.f / 6);
    p = p * r + 0.5f;
    p = p * r + 1.f;
    p = p * r + 1.f;
    i32x16 power = ((i32x16)as_u32(shifted) + (127 - 0x4b400000)) << 23;
    return select(x < -87.f, splat(0.f), p * (f32x16)power);
}
static INLINE float exp1(float x) { return vexp(splat(x))[0]; }
static INLINE f32x16 vtanh(f32x16 x) {
    // 1 - 2 / (e^2|x| + 1) loses digits near 0; there the odd Taylor polynomial serves.
    f32x16 a = select(x < 0.f, -x, x);
    f32x16 big = 1.f - 2.f / (vexp(vmin(2.f * a, splat(80.f))) + 1.f);
    f32x16 s = x * x;
    f32x16 small = a * (1.f + s * (-1.f / 3 + s * (2.f / 15 + s * (-17.f / 315 + s * (62.f / 2835)))));
    f32x16 t = select(a < 0.25f, small, big);
    t = select(x < 0.f, -t, t);
    return select(x == x, t, x);
}
static INLINE f32x16 verf(f32x16 x) {
    f32x16 y;
    for (int i = 0; i < W; i++) y[i] = std::erf(x[i]);
    return y;
}

enum Activation { SILU = 0, GELU_TANH = 1, GELU = 2 };
template <int KIND> static INLINE f32x16 activate(f32x16 x) {
    if constexpr (KIND == SILU) return select(x < -88.f, splat(0.f), x / (1.f + vexp(-x)));  // vexp ends at e^88.3
    if constexpr (KIND == GELU_TANH) return 0.5f * x * (1.f + vtanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    return 0.5f * x * (1.f + verf(x * 0.70710678f));
}
