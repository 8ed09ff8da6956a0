// The C interface: plain functions over pointers, sizes in entries, called through ctypes. Every function gets a number of threads, its
// caller's included. Types of tensors: 0 float, 1 bf16. Results: 0, or 1 when an index lies outside its table.
#include "decoder.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// body<T>() for the type of a tensor.
template <class Body> static auto by_type(int type, Body&& body) { return type == 1 ? body(BF16{}) : body(F32{}); }

// row(i) for each row, several rows a unit.
template <class Row> static void parallel_rows(int threads, int rows, Row&& row) {
    int units = rows < 4 * threads ? rows : 4 * threads;
    parallel_units(threads, units, [&](int unit) {
        for (int i = (int)((int64_t)rows * unit / units); i < (int)((int64_t)rows * (unit + 1) / units); i++) row(i);
    });
}

EXPORT const char* trivium_features() {
#if defined(__AVX512BF16__)
    return "avx512_bf16";
#elif defined(__AVX512F__)
    return "avx512";
#elif defined(__AVX2__)
    return "avx2";
#else
    return "generic";
#endif
}

EXPORT void trivium_rms_norm(int type, const NormArgs* g, int threads) {
    threads = worth(threads, (int64_t)g->rows * g->n);
    by_type(type, [&]<class T>(T) { parallel_rows(threads, g->rows, [&](int row) { rms_norm_row<typename T::A>(*g, row); }); });
}

EXPORT void trivium_act_and_mul(int type, const void* x, int64_t stride, void* out, int rows, int n, int kind, int threads) {
    by_type(type, [&]<class T>(T) {
        using E = typename T::A;
        parallel_rows(worth(threads, (int64_t)rows * n), rows,
                      [&](int row) { act_and_mul_row((const E*)x + row * stride, (E*)out + (ptrdiff_t)row * n, n, kind); });
    });
}

EXPORT int trivium_prepare_qkv(int type, const QKVArgs* g, int threads) {
    std::atomic<bool> bad{false};
    by_type(type, [&]<class T>(T) {
        parallel_rows(worth(threads, (int64_t)g->rows * (g->heads + 2 * g->kv_heads) * g->dim), g->rows, [&](int row) {
            if (!prepare_qkv<typename T::A>(*g, row)) bad = true;
        });
    });
    return bad;
}

EXPORT int64_t trivium_packed_entries(int type, int64_t n, int64_t k) {
    if (type == 2) return packed_entries<Int8>(n, k);
    return by_type(type, [&]<class T>(T) { return packed_entries<T>(n, k); });
}

EXPORT void trivium_pack_weight(int type, const void* w, int64_t stride, int n, int k, void* out, int threads) {
    auto pack = [&]<class T>(T) {
        using B = typename T::B;
        parallel_rows(threads, num_panels(n), [&](int panel) { pack_panel<T>((const B*)w, stride, n, k, (B*)out, panel); });
    };
    if (type == 2) pack(Int8{});
    else by_type(type, pack);
}

// x has the type of out; the weight too, or int8 if there are scales.
EXPORT void trivium_linear(int type, const LinearArgs* g, int threads) {
    threads = worth(threads, (int64_t)g->n * g->k / W * (g->rows + 1));
    by_type(type, [&]<class T>(T) {
        using E = typename T::A;
        if (!g->w_scale) {
            Units units = cut(*g, sizeof(E), threads);
            parallel_units(threads, units.count(), [&](int unit) { linear_unit<T, E>(*g, units, unit); });
            return;
        }
        LinearArgs args = *g;
        int64_t width = round_up(g->k, Int8::STEP);
        std::vector<uint8_t> rows(g->rows * width);
        std::vector<float> scales(g->rows);
        parallel_rows(threads, g->rows, [&](int i) { scales[i] = quantize_row((const E*)g->x + i * g->x_stride, g->k, rows.data() + i * width); });
        args.x = rows.data();
        args.x_stride = width;
        args.x_scale = scales.data();
        Units units = cut(args, 1, threads);
        parallel_units(threads, units.count(), [&](int unit) { linear_unit<Int8, E>(args, units, unit); });
    });
}

// x, and out unless it is float, have the type that codes are packed for.
EXPORT void trivium_quantized_linear(int type, const LinearArgs* g, const QuantizedWeight* w, int threads) {
    threads = worth(threads, (int64_t)g->n * g->k / W * (g->rows + 1));
    Units units = cut_quantized(*g, threads);
    by_type(type, [&]<class T>(T) {
        parallel_units(threads, units.count(), [&](int unit) { quantized_unit<T, typename T::A>(*g, *w, units, unit); });
    });
}

template <class T> static void attend(const AttentionArgs& g, const AttentionWork& work, int threads) {
    Shape<T> shape(g);
    std::vector<float> partials(work.num_partials * shape.partial_size());
    auto run = [&](int count, auto&& body) {
        parallel_units(threads, count, [&](int i) {
            static thread_local Scratch<T> scratch;
            scratch.prepare(shape);
            body(i, scratch);
        });
    };
    run((int)work.pieces.size(), [&](int i, Scratch<T>& scratch) { Attend<T>(g, work.pieces[i], scratch, work.after(i, threads)).run(partials.data()); });
    run((int)work.merges.size(),
        [&](int i, Scratch<T>& scratch) { Attend<T>(g, work.pieces[work.merges[i]], scratch).finish(partials.data()); });
}

EXPORT int trivium_attention(int type, const AttentionArgs* g, int threads) {
    int64_t keys = 0;
    for (int r = 0; r < g->rows; r++) keys += (int64_t)(g->query_starts[r + 1] - g->query_starts[r]) * g->seq_lens[r];
    threads = worth(threads, keys * g->heads * g->dim / W);
    AttentionWork work;
    if (!plan_attention(*g, threads, work)) return 1;
    by_type(type, [&]<class T>(T) { attend<T>(*g, work, threads); });
    return 0;
}

EXPORT int64_t trivium_decoder_workspace(int type, const DecoderStep* g) {
    return by_type(type, [&]<class T>(T) { return (int64_t)Workspace<T>(*g, nullptr).bytes; });
}

EXPORT int trivium_decoder(int type, const DecoderStep* g, int threads) {
    return by_type(type, [&]<class T>(T) { return Decode<T>(*g, threads).run(); });
}
