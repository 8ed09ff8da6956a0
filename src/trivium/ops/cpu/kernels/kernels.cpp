// The C interface: plain functions over pointers, sizes in entries, called through ctypes. Every function gets a number of threads and runs
// one parallel region. Types of tensors: 0 float, 1 bf16. Results: 0, or 1 when an index lies outside its table.
#include <omp.h>
#include <utility>
#include "attention.h"
#include "elementwise.h"
#include "linear.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

template <class Body> static void parallel(int threads, Body&& body) {
    if (threads <= 1) {
        body(0, 1);
        return;
    }
#pragma omp parallel num_threads(threads)
    body(omp_get_thread_num(), omp_get_num_threads());
}

// body<T>() for the type of a tensor.
template <class Body> static auto by_type(int type, Body&& body) { return type == 1 ? body(BF16{}) : body(F32{}); }

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
    by_type(type, [&]<class T>(T) { parallel(threads, [&](int t, int n) { rms_norm<typename T::E>(*g, t, n); }); });
}

EXPORT void trivium_act_and_mul(int type, const void* x, int64_t stride, void* out, int rows, int n, int kind, int threads) {
    by_type(type, [&]<class T>(T) {
        using E = typename T::E;
        parallel(threads, [&](int t, int count) { act_and_mul<E>((const E*)x, stride, (E*)out, rows, n, kind, t, count); });
    });
}

EXPORT int trivium_prepare_qkv(int type, const QKVArgs* g, int threads) {
    std::atomic<int> bad{0};
    by_type(type, [&]<class T>(T) {
        parallel(threads, [&](int t, int n) {
            if (prepare_qkv<typename T::E>(*g, t, n)) bad = 1;
        });
    });
    return bad;
}

EXPORT int64_t trivium_packed_entries(int type, int64_t n, int64_t k) {
    return by_type(type, [&]<class T>(T) { return packed_entries<T>(n, k); });
}

EXPORT void trivium_pack_weight(int type, const void* w, int64_t stride, int n, int k, int paired, void* out, int threads) {
    by_type(type, [&]<class T>(T) {
        using E = typename T::E;
        parallel(threads, [&](int t, int count) { pack_weight<T>((const E*)w, stride, n, k, paired, (E*)out, t, count); });
    });
}

EXPORT void trivium_linear(int type, const LinearArgs* g, int threads) {
    by_type(type, [&]<class T>(T) { parallel(threads, [&](int t, int n) { linear<T>(*g, t, n); }); });
}

template <class T> static void attend(const AttentionArgs& g, const AttentionWork& work, int threads) {
    static thread_local std::vector<float> partials;
    Shape<T> shape(g);
    if ((ptrdiff_t)partials.size() < work.num_partials * shape.partial_size()) partials.resize(work.num_partials * shape.partial_size());
    float* partial = partials.data();
    std::atomic<int> next{0};
    auto drain = [&](int count, auto&& body) {
        static thread_local Scratch<T> scratch;
        scratch.prepare(shape);
        for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i, scratch);
    };
    int count = (int)work.pieces.size(), merges = (int)work.merges.size();
    parallel(threads < count ? threads : count, [&](int, int) {
        drain(count, [&](int i, Scratch<T>& scratch) { Attend<T>(g, work.pieces[i], scratch).run(partial); });
    });
    next = 0;
    if (merges)
        parallel(threads < merges ? threads : merges, [&](int, int) {
            drain(merges, [&](int i, Scratch<T>& scratch) { Attend<T>(g, work.pieces[work.merges[i]], scratch).finish(partial); });
        });
}

EXPORT int trivium_attention(int type, const AttentionArgs* g, int threads) {
    static thread_local AttentionWork work;
    if (!plan_attention(*g, threads, work)) return 1;
    if (!work.pieces.empty()) by_type(type, [&]<class T>(T) { attend<T>(*g, work, threads); });
    return 0;
}
