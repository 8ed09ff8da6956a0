// A whole step of a decoder as one job: the layers' phases follow each other without a return to Python. The arithmetic is that of
// the single kernels; only the activation is applied before the product of gate and up is rounded.
#pragma once
#include <algorithm>
#include <memory>
#include "attention.h"
#include "elementwise.h"
#include "linear.h"
#include "pool.h"
#include "quantized.h"

struct Projection {
    const void* weight;  // packed
    const float* bias;
    const float* scale;  // int8: [padded n], else null: the weight has the type of the activations
    const int32_t* sum;  // int8
    const QuantizedWeight* quantized;  // of 4 or 8 bits in groups, instead of weight, scale and sum; else null
    int32_t n, k;
};

struct DecoderLayer {
    Projection qkv, output, gate_up, down;
    const void *input_norm, *feed_forward_norm;
    const void *post_attention_norm, *post_feed_forward_norm;  // null: none
    const void *q_norm, *k_norm;                               // null: none
    const float* cos_sin;
    void *key, *value;
    int64_t max_positions;
    int32_t heads, kv_heads, dim, rotary_dim, interleaved, window;
    float scale, softcap;
};

struct DecoderStep {
    const DecoderLayer* layers;
    const void* final_norm;
    void* residual;   // [tokens, hidden]: embeddings; overwritten
    void* out;        // [tokens, hidden], normed
    char* workspace;  // decoder_workspace() bytes
    const int64_t *positions, *slots;
    const int32_t *block_tables, *query_starts, *seq_lens;
    int64_t table_stride, num_blocks;
    int32_t num_layers, tokens, rows, hidden, block_size, activation;
    float eps, offset;
};

constexpr int ROWS_OF_A_UNIT = 8;  // of work that goes row by row
constexpr int LOCAL_ROWS = 16;     // up to here each thread does such work for itself: less than waiting costs

// Where a step keeps what passes between phases.
template <class T> struct Workspace {
    typename T::A *normed, *qkv, *attended, *gated, *block;
    uint8_t* bytes_of_rows;
    float* scales;
    size_t bytes;
    Workspace(const DecoderStep& g, char* at) {
        int64_t qkv_width = 0, attended_width = 0, gated_width = 0;
        for (int i = 0; i < g.num_layers; i++) {
            const DecoderLayer& layer = g.layers[i];
            qkv_width = std::max<int64_t>(qkv_width, layer.qkv.n);
            attended_width = std::max<int64_t>(attended_width, layer.output.k);
            gated_width = std::max<int64_t>(gated_width, layer.down.k);
        }
        char* start = at;
        auto take = [&](auto*& taken, int64_t width) {
            taken = (std::remove_reference_t<decltype(taken)>)at;
            at += (g.tokens * width * sizeof(*taken) + 127) / 64 * 64;
        };
        take(normed, g.hidden);
        take(qkv, qkv_width);
        take(attended, attended_width);
        take(gated, gated_width);
        take(block, g.hidden);
        take(bytes_of_rows, std::max<int64_t>({g.hidden, attended_width, gated_width}) + 3);
        take(scales, 1);
        bytes = at - start;
    }
};

template <class T> struct Decode {
    using E = typename T::A;
    const DecoderStep& g;
    int threads;
    Workspace<T> space;
    std::deque<AttentionWork> work;  // by `work_of`
    std::vector<int> work_of;        // of a layer
    std::vector<float> partials;
    std::atomic<bool> bad{false};
    std::shared_ptr<Job> job = std::make_shared<Job>();

    Decode(const DecoderStep& g, int threads) : g(g), threads(threads), space(g, g.workspace) {}

    AttentionArgs attention_args(const DecoderLayer& layer) const {
        return {space.attended, layer.key, layer.value, g.block_tables, g.query_starts, g.seq_lens, space.attended, g.table_stride, g.num_blocks,
                g.rows, layer.heads, layer.kv_heads, layer.dim, g.block_size, layer.window, layer.scale, layer.softcap};
    }
    // Layers with the same window share the work list.
    bool plan_attention_of_layers() {
        ptrdiff_t partial_size = 0;
        for (int i = 0; i < g.num_layers; i++) {
            const DecoderLayer &layer = g.layers[i];
            int same = 0;
            for (; same < i; same++) {
                const DecoderLayer& other = g.layers[same];
                if (other.window == layer.window && other.heads == layer.heads && other.kv_heads == layer.kv_heads && other.dim == layer.dim) break;
            }
            if (same < i) {
                work_of.push_back(work_of[same]);
                continue;
            }
            AttentionArgs args = attention_args(layer);
            work_of.push_back((int)work.size());
            if (!plan_attention(args, threads, work.emplace_back())) return false;
            partial_size = std::max(partial_size, work.back().num_partials * Shape<T>(args).partial_size());
        }
        partials.resize(partial_size);
        return true;
    }
    // row(i) for all rows, some of them a unit.
    template <class Row> void add_rows(Row row) {
        job->add((g.tokens + ROWS_OF_A_UNIT - 1) / ROWS_OF_A_UNIT, [this, row](int unit) {
            for (int i = unit * ROWS_OF_A_UNIT; i < g.tokens && i < (unit + 1) * ROWS_OF_A_UNIT; i++) row(i);
        });
    }
    E* residual(int row) const { return (E*)g.residual + (ptrdiff_t)row * g.hidden; }
    // A buffer of this thread for LOCAL_ROWS rows.
    template <class X, int PURPOSE = 0> static X* own(int width) {
        static thread_local std::vector<X> rows;
        if (rows.size() < (size_t)LOCAL_ROWS * width + W) rows.resize((size_t)LOCAL_ROWS * width + W);
        return rows.data();
    }
    // Whether this thread is here for the first time since a number was drawn.
    static bool first_time(uint64_t number) {
        static thread_local uint64_t last = 0;
        if (last == number) return false;
        last = number;
        return true;
    }
    static uint64_t draw_number() {
        static std::atomic<uint64_t> last{0};
        return ++last;
    }
    // A projection of rows that `fill(row, room for it)` makes and returns. Few rows: each thread makes all of them for itself.
    template <class Fill> void project(const Projection& p, E* shared, void* out, int64_t out_stride, int epilogue, Fill fill) {
        LinearArgs args{shared, p.weight, p.bias, out, out, nullptr, p.scale, p.sum, p.k, out_stride, g.tokens, p.n, p.k, epilogue, g.activation, 0};
        bool int8 = p.scale, local = g.tokens <= LOCAL_ROWS;
        if (int8) {
            args.x = space.bytes_of_rows;
            args.x_scale = space.scales;
            args.x_stride = round_up(p.k, Int8::STEP);
        }
        auto make = [fill, k = p.k, int8](int i, E* rows, uint8_t* bytes, float* scales) {
            const E* row = fill(i, rows + (ptrdiff_t)i * k);
            if (int8) scales[i] = quantize_row(row, k, bytes + (ptrdiff_t)i * round_up(k, Int8::STEP));
        };
        if (!local) add_rows([this, make, shared](int i) { make(i, shared, space.bytes_of_rows, space.scales); });
        Units units = p.quantized ? cut_quantized(args, threads) : cut(args, int8 ? 1 : sizeof(E), threads);
        uint64_t number = draw_number();
        job->add(units.count(), [this, args, units, make, number, local, int8, k = p.k, quantized = p.quantized](int unit) {
            LinearArgs mine = args;
            if (local) {
                E* rows = own<E>(k);
                uint8_t* bytes = int8 ? own<uint8_t>(round_up(k, Int8::STEP)) : nullptr;
                float* scales = int8 ? own<float, 1>(1) : nullptr;
                if (first_time(number))
                    for (int i = 0; i < g.tokens; i++) make(i, rows, bytes, scales);
                mine.x = int8 ? (const void*)bytes : rows;
                mine.x_scale = scales;
            }
            if (quantized) quantized_unit<T, E>(mine, *quantized, units, unit);
            else if (int8) linear_unit<Int8, E>(mine, units, unit);
            else linear_unit<T, E>(mine, units, unit);
        });
    }
    // Of rows that are there already.
    void project(const Projection& p, const E* x, void* out, int64_t out_stride, int epilogue) {
        if (p.scale) {
            project(p, nullptr, out, out_stride, epilogue, [x, k = p.k](int i, E*) { return x + (ptrdiff_t)i * k; });
            return;
        }
        LinearArgs args{x, p.weight, p.bias, out, out, nullptr, nullptr, nullptr, p.k, out_stride, g.tokens, p.n, p.k, epilogue, g.activation, 0};
        Units units = p.quantized ? cut_quantized(args, threads) : cut(args, sizeof(E), threads);
        job->add(units.count(), [args, units, quantized = p.quantized](int unit) {
            if (quantized) quantized_unit<T, E>(args, *quantized, units, unit);
            else linear_unit<T, E>(args, units, unit);
        });
    }
    // norm(residual) times a projection.
    void norm_and_project(const void* norm, const Projection& p, void* out, int64_t out_stride, int epilogue) {
        project(p, space.normed, out, out_stride, epilogue, [this, norm](int i, E* to) {
            norm_row(residual(i), (const E*)norm, to, g.hidden, g.eps, g.offset);
            return to;
        });
    }
    // residual += projection of x, normed before if there is a norm.
    void project_and_add(const Projection& p, const E* x, const void* post_norm) {
        if (!post_norm) {
            project(p, x, g.residual, g.hidden, ADD);
            return;
        }
        project(p, x, space.block, g.hidden, STORE);
        add_rows([this, post_norm](int i) {
            E* block = space.block + (ptrdiff_t)i * g.hidden;
            norm_row(block, (const E*)post_norm, block, g.hidden, g.eps, g.offset);
            for (int d = 0; d < g.hidden; d += W) store_at(residual(i), d, g.hidden, load_at(block, d, g.hidden) + load_at(residual(i), d, g.hidden));
        });
    }
    static Scratch<T>& scratch(const AttentionArgs& args) {
        static thread_local Scratch<T> scratch;
        scratch.prepare(Shape<T>(args));
        return scratch;
    }
    void attend(const DecoderLayer& layer, const AttentionWork& pieces) {
        AttentionArgs args = attention_args(layer);
        QKVArgs qkv{space.qkv, layer.cos_sin, g.positions, g.slots, layer.q_norm, layer.k_norm, layer.key, layer.value, space.attended,
                    layer.qkv.n, g.num_blocks * g.block_size, layer.max_positions, g.tokens, layer.heads, layer.kv_heads, layer.dim, g.block_size,
                    layer.rotary_dim, layer.interleaved, g.eps, g.offset};
        if (!pieces.singles) add_rows([this, qkv](int i) { if (!prepare_qkv<E>(qkv, i)) bad = true; });
        job->add((int)pieces.pieces.size(), [this, args, qkv, &pieces](int i) {
            const Piece& piece = pieces.pieces[i];
            if (pieces.singles && !prepare_qkv<E>(qkv, g.query_starts[piece.row], piece.kv_head)) bad = true;
            Attend<T>(args, piece, scratch(args), pieces.after(i, threads)).run(partials.data());
        });
        job->add((int)pieces.merges.size(), [this, args, &pieces](int i) {
            Attend<T>(args, pieces.pieces[pieces.merges[i]], scratch(args)).finish(partials.data());
        });
    }
    int run() {
        if (!plan_attention_of_layers()) return 1;
        for (int i = 0; i < g.num_layers; i++) {
            const DecoderLayer& layer = g.layers[i];
            norm_and_project(layer.input_norm, layer.qkv, space.qkv, layer.qkv.n, STORE);
            attend(layer, work[work_of[i]]);
            project_and_add(layer.output, space.attended, layer.post_attention_norm);
            norm_and_project(layer.feed_forward_norm, layer.gate_up, space.gated, layer.down.k, ACT_MUL);
            project_and_add(layer.down, space.gated, layer.post_feed_forward_norm);
        }
        add_rows([this](int i) {
            norm_row(residual(i), (const E*)g.final_norm, (E*)g.out + (ptrdiff_t)i * g.hidden, g.hidden, g.eps, g.offset);
        });
        pool().run(job, threads);
        return bad;
    }
};
