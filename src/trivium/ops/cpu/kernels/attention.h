// Causal attention over the paged cache, one kernel for decode and prefill (Dao, https://arxiv.org/abs/2307.08691).
//
// A piece of work is (row, KV head, a few queries): all query heads that share the KV head go through the same tiles of 64 keys. Keys and
// values of a tile are packed for `multiply`, scores get an online softmax, probabilities are multiplied with the values. Tiles start at
// multiples of 64 and partial results are merged at multiples of CHUNK, counted from the sequence's start: what a query gets doesn't depend
// on the queries it is computed with, on the block size, or on how many threads share its keys.
#pragma once
#include <vector>
#include "gemm.h"

constexpr int TILE = 64;
constexpr int CHUNK = 512;       // keys
constexpr int QUERY_ROWS = 96;   // queries times heads per piece

struct AttentionArgs {
    const void* query;            // [tokens, heads, dim]
    const void *key, *value;      // [num_blocks, kv_heads, block_size, dim]
    const int32_t* block_tables;  // [rows, table_stride]
    const int32_t* query_starts;  // [rows + 1]
    const int32_t* seq_lens;      // [rows]
    void* out;                    // [tokens, heads, dim]
    int64_t table_stride, num_blocks;
    int32_t rows, heads, kv_heads, dim, block_size;
    int32_t window;               // 0: none
    float scale, softcap;         // softcap 0: none
};

struct Piece {
    int row, kv_head, first, count;  // queries [first, first + count) of the row
    int key_from, key_to;            // keys of the chunks this piece covers
    int partial;                     // where its partial result goes; -1: it is the whole
};

// All pieces of a step, the same for every layer with the same window.
struct AttentionWork {
    std::vector<Piece> pieces;
    std::vector<int> merges;  // first pieces of runs that are to be merged, in order
    int num_partials = 0;
    bool singles = true;  // one query a row, and each piece is a whole
    const Piece* after(int piece, int threads) const { return piece + threads < (int)pieces.size() ? &pieces[piece + threads] : nullptr; }
};

// Rows of a piece: queries times heads that share a KV head, at least one query.
static INLINE int rows_of_a_piece(const AttentionArgs& g) {
    int group = g.heads / g.kv_heads;
    return group > QUERY_ROWS ? group : QUERY_ROWS / group * group;
}

// Returns false if the batch contradicts itself or the cache.
static bool plan_attention(const AttentionArgs& g, int threads, AttentionWork& work) {
    int per_piece = rows_of_a_piece(g) / (g.heads / g.kv_heads);
    int64_t whole = 0;
    for (int r = 0; r < g.rows; r++) {
        int count = g.query_starts[r + 1] - g.query_starts[r], seq_len = g.seq_lens[r];
        if (count < 0 || (count && (count > seq_len || seq_len > g.table_stride * g.block_size))) return false;
        for (int b = 0; count && b < (seq_len + g.block_size - 1) / g.block_size; b++) {
            int32_t block = g.block_tables[r * g.table_stride + b];
            if (block < 0 || block >= g.num_blocks) return false;
        }
        whole += (int64_t)((count + per_piece - 1) / per_piece) * g.kv_heads;
    }
    bool split = whole < 4 * threads && threads > 1;
    work.pieces.clear();
    work.merges.clear();
    work.num_partials = 0;
    work.singles = true;
    for (int r = 0; r < g.rows; r++) {
        int count = g.query_starts[r + 1] - g.query_starts[r], before = g.seq_lens[r] - count;
        work.singles &= count <= 1;
        for (int first = 0; first < count; first += per_piece) {
            int n = count - first < per_piece ? count - first : per_piece;
            int from = g.window && before + first - g.window + 1 > 0 ? before + first - g.window + 1 : 0, to = before + first + n;
            for (int h = 0; h < g.kv_heads; h++) {
                if (!split || from / CHUNK == (to - 1) / CHUNK) {
                    work.pieces.push_back({r, h, first, n, from, to, -1});
                    continue;
                }
                work.singles = false;
                work.merges.push_back((int)work.pieces.size());
                for (int c = from / CHUNK * CHUNK; c < to; c += CHUNK)
                    work.pieces.push_back({r, h, first, n, c > from ? c : from, c + CHUNK < to ? c + CHUNK : to, work.num_partials++});
            }
        }
    }
    return true;
}

// A partial result of n rows: the sum of values [n, padded dim], then each row's maximum, then its sum of probabilities.
template <class T> struct Shape {
    int dim, padded, rows;  // padded to whole vectors
    explicit Shape(const AttentionArgs& g) : dim(g.dim), padded(round_up(g.dim, W)), rows(rows_of_a_piece(g)) {}
    ptrdiff_t partial_size() const { return (ptrdiff_t)rows * (padded + 2) + W; }
    float* maxima(float* partial) const { return partial + (ptrdiff_t)rows * padded; }
    float* sums(float* partial) const { return maxima(partial) + rows; }
    int key_steps() const { return (dim + T::STEP - 1) / T::STEP; }
};

// into = into and chunk together, `into` holding the earlier keys.
template <class T> static void merge(const Shape<T>& s, float* into, float* chunk, int n) {
    for (int i = 0; i < n; i++) {
        float &m = s.maxima(into)[i], &l = s.sums(into)[i], mc = s.maxima(chunk)[i], lc = s.sums(chunk)[i];
        if (lc == 0.f) continue;  // every key of the chunk was masked
        float top = m > mc ? m : mc, a = l == 0.f ? 0.f : exp1(m - top), b = exp1(mc - top);
        l = l * a + lc * b;
        m = top;
        for (int d = 0; d < s.padded; d += W) {
            float *o = into + (ptrdiff_t)i * s.padded + d, *c = chunk + (ptrdiff_t)i * s.padded + d;
            store(o, load(o) * a + load(c) * b);
        }
    }
}
template <class T> static void clear(const Shape<T>& s, float* partial, int n) {
    memset(partial, 0, (ptrdiff_t)n * s.padded * sizeof(float));
    for (int i = 0; i < n; i++) {
        s.maxima(partial)[i] = -INFINITY;
        s.sums(partial)[i] = 0.f;
    }
}

// Sixteen keys' entries, packed: from rows of keys to [step][16 keys][STEP]. `rows` points to 16 rows, those past the end repeat a valid one.
static INLINE void transpose_keys(const float* const* rows, int dim, float* out, ptrdiff_t step_stride) {
    for (int d = 0; d < dim; d++)
        for (int i = 0; i < W; i++) out[d * step_stride + i] = rows[i][d];
}
static INLINE void transpose_keys(const bf16* const* rows, int dim, bf16* out, ptrdiff_t step_stride) {
    int s = 0;
#ifdef __AVX512F__
    // 16 x 16 pairs at a time, in four rounds of interleaving.
    for (; s + W <= dim / 2; s += W) {
        __m512i r[W], t[W];
        for (int i = 0; i < W; i++) r[i] = _mm512_loadu_si512(rows[i] + 2 * s);
        for (int i = 0; i < W; i += 2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        for (int i = 0; i < W; i += 4) {
            r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
            r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
            r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
            r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        for (int i = 0; i < 4; i++) {
            t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
            t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
            t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
            t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
        }
        for (int i = 0; i < 8; i++) {
            r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
            r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        }
        for (int i = 0; i < W; i++) _mm512_storeu_si512(out + (s + i) * step_stride, r[i]);
    }
#endif
    for (; s < (dim + 1) / 2; s++)
        for (int i = 0; i < W; i++) {
            out[s * step_stride + 2 * i] = rows[i][2 * s];
            out[s * step_stride + 2 * i + 1] = 2 * s + 1 < dim ? rows[i][2 * s + 1] : 0;
        }
}

// Values of one or two keys: [dim / 16][16][STEP] of one step.
static INLINE void interleave_values(const float* a, const float*, int dim, float* out) {
    for (int d = 0; d < dim; d += W) store(out + d, load_at(a, d, dim));
}
static INLINE void interleave_values(const bf16* a, const bf16* b, int dim, bf16* out) {
    int d = 0;
#ifdef __AVX512BW__
    alignas(64) static constexpr uint16_t LOW[32] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(LOW), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (; d + 2 * W <= dim; d += 2 * W) {
        __m512i x = _mm512_loadu_si512(a + d), y = _mm512_loadu_si512(b + d);
        _mm512_storeu_si512(out + 2 * d, _mm512_permutex2var_epi16(x, low, y));
        _mm512_storeu_si512(out + 2 * d + 2 * W, _mm512_permutex2var_epi16(x, high, y));
    }
#endif
    for (; d < round_up(dim, W); d++) {
        out[2 * d] = d < dim ? a[d] : 0;
        out[2 * d + 1] = d < dim ? b[d] : 0;
    }
}

// One thread's buffers.
template <class T> struct Scratch {
    using E = typename T::A;
    std::vector<char> memory;
    E *query, *keys, *values, *probabilities;
    float *scores, *total, *chunk;
    void prepare(const Shape<T>& s) {
        size_t query_size = (size_t)s.rows * s.key_steps() * T::STEP * sizeof(E), keys_size = (size_t)s.key_steps() * TILE * T::STEP * sizeof(E);
        size_t values_size = (size_t)TILE * s.padded * sizeof(E), scores_size = (size_t)s.rows * TILE * sizeof(float);
        size_t partial = (s.partial_size() * sizeof(float) + 63) / 64 * 64;
        query_size = (query_size + 63) / 64 * 64;
        size_t bytes = query_size + keys_size + values_size + 2 * scores_size + 2 * partial + 64;
        if (memory.size() < bytes) memory.resize(bytes);
        char* p = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64;
        auto take = [&](size_t size) { char* at = p; p += size; return at; };
        query = (E*)take(query_size);
        keys = (E*)take(keys_size);
        values = (E*)take(values_size);
        scores = (float*)take(scores_size);
        probabilities = (E*)take(scores_size);
        total = (float*)take(partial);
        chunk = (float*)take(partial);
    }
};

template <class T> struct Attend {
    using E = typename T::A;
    const AttentionArgs& g;
    const Piece& piece;
    const Piece* next;  // what this thread may do next, or null
    Scratch<T>& scratch;
    Shape<T> shape;
    int group, num_rows, first_position;

    Attend(const AttentionArgs& g, const Piece& piece, Scratch<T>& scratch, const Piece* next = nullptr)
        : g(g), piece(piece), next(next), scratch(scratch), shape(g) {
        group = g.heads / g.kv_heads;
        num_rows = piece.count * group;
        first_position = g.seq_lens[piece.row] - (g.query_starts[piece.row + 1] - g.query_starts[piece.row]) + piece.first;
    }
    ptrdiff_t row_at(int i) const {  // row i of the piece: query i / group, head i % group
        return ((ptrdiff_t)(g.query_starts[piece.row] + piece.first + i / group) * g.heads + piece.kv_head * group + i % group) * g.dim;
    }
    void load_query() {
        int width = shape.key_steps() * T::STEP;
        for (int i = 0; i < num_rows; i++) {
            E* to = scratch.query + (ptrdiff_t)i * width;
            to[width - 1] = 0;
            memcpy(to, (const E*)g.query + row_at(i), g.dim * sizeof(E));
        }
    }
    // Where the keys and values of a tile lie.
    struct Tile {
        int keys = 0;
        const E *key[TILE], *value[TILE];
    };
    void find_tile(Tile& tile, const Piece& p, int from, int to) const {
        const int32_t* table = g.block_tables + p.row * g.table_stride;
        tile.keys = to - from < TILE ? to - from : TILE;
        for (int i = 0; i < tile.keys;) {
            int block = (from + i) / g.block_size, offset = (from + i) % g.block_size;
            ptrdiff_t at = (((ptrdiff_t)table[block] * g.kv_heads + p.kv_head) * g.block_size + offset) * g.dim;
            for (; offset < g.block_size && i < tile.keys; offset++, i++, at += g.dim) {
                tile.key[i] = (const E*)g.key + at;
                tile.value[i] = (const E*)g.value + at;
            }
        }
    }
    // Asks for memory ahead of time, a little with each piece of work: blocks are short and scattered, so that the hardware doesn't foresee them.
    void fetch(const E* const* rows, int first, int last, int keys) const {
        for (int i = first; i < last && i < keys; i++)
            for (int byte = 0; byte < g.dim * (int)sizeof(E); byte += 64) __builtin_prefetch((const char*)rows[i] + byte);
    }
    void load_tile(Tile& tile, const Tile& soon) {
        int keys = tile.keys;
        const E **k = tile.key, **v = tile.value;
        int padded = keys > 2 * W ? TILE : round_up(keys, W);
        for (int i = keys; i < padded; i++) k[i] = k[keys - 1];  // masked later
        for (int i = 0; i < padded; i += W) {
            fetch(soon.key, i, i + W, soon.keys);
            transpose_keys(k + i, g.dim, scratch.keys + i * T::STEP, TILE * T::STEP);
        }
        fetch(soon.key, padded, TILE, soon.keys);
        for (int i = 0; i < keys; i += T::STEP) {
            fetch(soon.value, i, i + T::STEP, soon.keys);
            interleave_values(v[i], v[i + T::STEP - 1 < keys ? i + T::STEP - 1 : i], g.dim, scratch.values + (ptrdiff_t)i * shape.padded);
        }
        fetch(soon.value, round_up(keys, T::STEP), TILE, soon.keys);
    }
    // Scores of one row to probabilities; the sum of values so far is scaled to the new maximum.
    void softmax_row(float* partial, int i, int from, int vectors) {
        int position = first_position + i / group;
        int low = g.window ? position - g.window + 1 : 0;
        float* x = scratch.scores + i * TILE;
        f32x16 top = splat(-INFINITY);
        bool masked = from < low || from + vectors * W > position + 1;
        for (int v = 0; v < vectors; v++) {
            f32x16 s = load(x + v * W) * g.scale;
            if (g.softcap != 0.f) s = g.softcap * vtanh(s / g.softcap);
            if (masked) {
                i32x16 at = lanes() + (from + v * W);
                s = select((at >= low) & (at <= position), s, splat(-INFINITY));
            }
            store(x + v * W, s);
            top = vmax(s, top);  // in this order NaN is kept
        }
        float &m = shape.maxima(partial)[i], &l = shape.sums(partial)[i];
        float highest = maximum(top), next = highest > m ? highest : m;
        E* p = scratch.probabilities + i * TILE;
        float base = next == -INFINITY ? 0.f : next;
        f32x16 total = {};
        for (int v = 0; v < vectors; v++) {
            store(p + v * W, vexp(load(x + v * W) - base));
            total = total + load(p + v * W);
        }
        if (next != m && l != 0.f) {
            float shrink = exp1(m - next);
            l *= shrink;
            float* o = partial + (ptrdiff_t)i * shape.padded;
            for (int d = 0; d < shape.padded; d += W) store(o + d, load(o + d) * shrink);
        }
        m = next;
        l += sum(total);
    }
    template <int NV> void score() {
        int width = shape.key_steps() * T::STEP;
        multiply_all<T, NV>({scratch.query, scratch.keys, width, TILE * T::STEP, W * T::STEP, 2 * W * T::STEP, shape.key_steps(), scratch.scores, TILE,
                             false, nullptr, 0}, num_rows);
    }
    template <int NV> void add_values(float* partial, int d, int keys) {
        multiply_all<T, NV>({scratch.probabilities, scratch.values + (ptrdiff_t)d * T::STEP, TILE, (ptrdiff_t)shape.padded * T::STEP, W * T::STEP,
                             2 * W * T::STEP, (keys + T::STEP - 1) / T::STEP, partial + d, shape.padded, true, nullptr, 0}, num_rows);
    }
    void run_tile(float* partial, int from, Tile& tile, const Tile& soon) {
        load_tile(tile, soon);
        int keys = tile.keys;
        int vectors = keys > 2 * W ? 4 : keys > W ? 2 : 1;
        if (vectors == 4) score<4>();
        else if (vectors == 2) score<2>();
        else score<1>();
        for (int i = 0; i < num_rows; i++) softmax_row(partial, i, from, vectors);
        int d = 0;
        for (; d + 4 * W <= shape.padded; d += 4 * W) add_values<4>(partial, d, keys);
        for (; d < shape.padded; d += W) add_values<1>(partial, d, keys);
    }
    // Keys of one chunk.
    void run_chunk(float* partial, int from, int to) {
        clear(shape, partial, num_rows);
        Tile tiles[2];
        find_tile(tiles[0], piece, from / TILE * TILE, to);
        int now = 0;
        for (int at = from / TILE * TILE; at < to; at += TILE, now ^= 1) {
            Tile& soon = tiles[now ^ 1];
            soon.keys = 0;
            if (at + TILE < to) find_tile(soon, piece, at + TILE, to);
            else if (to == piece.key_to && next) find_tile(soon, *next, next->key_from / TILE * TILE, next->key_to);
            run_tile(partial, at, tiles[now], soon);
        }
    }
    void write(float* partial) {
        for (int i = 0; i < num_rows; i++) {
            float l = shape.sums(partial)[i];
            for (int d = 0; d < g.dim; d += W)
                store_at((E*)g.out + row_at(i), d, g.dim, load(partial + (ptrdiff_t)i * shape.padded + d) / l);
        }
    }
    void run(float* partials) {
        load_query();
        if (piece.partial >= 0) {
            run_chunk(partials + piece.partial * shape.partial_size(), piece.key_from, piece.key_to);
            return;
        }
        float* total = scratch.total;
        if (piece.key_from / CHUNK == (piece.key_to - 1) / CHUNK) {
            run_chunk(total, piece.key_from, piece.key_to);
            write(total);
            return;
        }
        clear(shape, total, num_rows);
        for (int from = piece.key_from; from < piece.key_to;) {
            int to = (from / CHUNK + 1) * CHUNK;
            if (to > piece.key_to) to = piece.key_to;
            run_chunk(scratch.chunk, from, to);
            merge(shape, total, scratch.chunk, num_rows);
            from = to;
        }
        write(total);
    }
    // This piece is the first of a run of chunks whose partial results are there.
    void finish(float* partials) {
        float* total = scratch.total;
        clear(shape, total, num_rows);
        for (const Piece* p = &piece; p->row == piece.row && p->kv_head == piece.kv_head && p->first == piece.first; p++) {
            merge(shape, total, partials + p->partial * shape.partial_size(), num_rows);
            if (p->key_to == first_position + piece.count) break;
        }
        write(total);
    }
};
