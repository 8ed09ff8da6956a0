// Threads that share the units of one phase after another. A phase is over when all its units are done, not when all threads have arrived:
// a thread that the system took off its core without a unit in its hands holds nobody up.
#pragma once
#include <omp.h>
#include <sched.h>
#include <atomic>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct Phase {
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<int> done{0};
};

static inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// unit(i) for each i < count, shared with all threads that call this on the same phase; returns when all are done.
template <class Unit> static inline void share(Phase& phase, int count, Unit&& unit) {
    for (int i; (i = phase.next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        unit(i);
        phase.done.fetch_add(1, std::memory_order_release);
    }
    for (int spins = 0; phase.done.load(std::memory_order_acquire) < count; spins++) {
        if (spins < 4000) relax();
        else sched_yield();
    }
}

template <class Body> static inline void parallel(int threads, Body&& body) {
    if (threads <= 1) {
        body();
        return;
    }
#pragma omp parallel num_threads(threads)
    body();
}

// One phase alone.
template <class Unit> static inline void parallel_units(int threads, int count, Unit&& unit) {
    Phase phase;
    parallel(threads < count ? threads : count, [&] { share(phase, count, unit); });
}
