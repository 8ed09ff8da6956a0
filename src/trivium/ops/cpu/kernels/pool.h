// Threads that share the units of one phase after another.
//
// A phase is over when all its units are done, and a job when its last phase is: nobody waits for a thread to arrive. A thread that the system
// took off its core without a unit in its hands holds nobody up; it finds every phase exhausted when it comes back. So a job may outlive the
// call that made it, and what it refers to outside itself may only be touched by whoever holds a unit.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Around 0.2 ms: what another thread's last unit may take. A thread that waits longer waits for one that isn't running, and gives up its core
// for it.
constexpr int SPINS = 12000;
// Around 0.5 ms: from one call to the next inside a step, or to the next step. Longer would take the core from others.
constexpr int IDLE_SPINS = 25000;

struct Phase {
    int count;
    std::function<void(int)> unit;
    alignas(64) std::atomic<int> next{0};
    alignas(64) std::atomic<int> done{0};

    Phase(int count, std::function<void(int)> unit) : count(count), unit(std::move(unit)) {}
    void work() {
        for (int i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
            unit(i);
            if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == count) done.notify_all();
        }
        int seen = done.load(std::memory_order_acquire);
        for (int spins = 0; seen < count; seen = done.load(std::memory_order_acquire)) {
            if (spins++ < SPINS) relax();
            else done.wait(seen, std::memory_order_acquire);
        }
    }
};

struct Job {
    std::deque<Phase> phases;
    int workers = 0;  // that may help
    void add(int count, std::function<void(int)> unit) {
        if (count > 0) phases.emplace_back(count, std::move(unit));
    }
    void work() {
        for (Phase& phase : phases) phase.work();
    }
};

class Pool {
    std::mutex mutex;
    std::shared_ptr<Job> job;            // the latest
    int started = 0;                     // workers
    alignas(64) std::atomic<uint32_t> posted{0};  // jobs so far

    void serve(int index) {
        uint32_t seen = 0;
        for (;;) {
            uint32_t now = posted.load(std::memory_order_acquire);
            for (int spins = 0; now == seen; now = posted.load(std::memory_order_acquire)) {
                if (spins++ < IDLE_SPINS) relax();
                else posted.wait(seen, std::memory_order_acquire);
            }
            seen = now;
            std::shared_ptr<Job> mine;
            {
                std::lock_guard lock(mutex);
                mine = job;
            }
            if (mine && index < mine->workers) mine->work();
        }
    }

public:
    // Does the job with up to `threads` threads, this one included. Callers in several threads get in nobody's way: each works on its own job.
    void run(std::shared_ptr<Job> mine, int threads) {
        if (threads > 1) {
            mine->workers = threads - 1;
            {
                std::lock_guard lock(mutex);
                for (; started < threads - 1; started++) std::thread([this, index = started] { serve(index); }).detach();
                job = mine;
            }
            posted.fetch_add(1, std::memory_order_acq_rel);
            posted.notify_all();
        }
        mine->work();
        if (threads > 1) {
            std::lock_guard lock(mutex);
            if (job == mine) job.reset();
        }
    }
};

// Never destroyed: its threads run until the process ends.
static inline Pool& pool() {
    static Pool* pool = new Pool;
    return *pool;
}

// All threads or one, by what there is to do, in entries touched or products of sixteen: waking others takes longer than some microseconds of it.
static inline int worth(int threads, int64_t work) { return work < 2 * 16384 ? 1 : threads; }

// unit(i) for each i < count.
template <class Unit> static inline void parallel_units(int threads, int count, Unit&& unit) {
    if (threads <= 1 || count <= 1) {
        for (int i = 0; i < count; i++) unit(i);
        return;
    }
    auto job = std::make_shared<Job>();
    job->add(count, [&unit](int i) { unit(i); });
    pool().run(std::move(job), threads);
}
