// Many small jobs from three callers at once on one pool, each checked against the same work done alone. Exit code: how many were wrong.
#include <cstdio>
#include <cstdlib>
#include "pool.h"

static const int SIZE = 97, STEP = 11;  // units touch entries apart from each other: fewer than STEP of them

struct Plan {
    int phases, seed;
    int count(int phase) const { return (seed + phase) % (STEP - 1) + phase % 2; }  // now and then an empty phase
};
static void unit(std::vector<long>& data, int phase, int i) {
    for (int k = i; k < SIZE; k += STEP) data[k] += (phase ? data[k] : 1) % 7 + k;
}
static std::vector<long> alone(const Plan& plan) {
    std::vector<long> data(SIZE, 0);
    for (int phase = 0; phase < plan.phases; phase++)
        for (int i = 0; i < plan.count(phase); i++) unit(data, phase, i);
    return data;
}
static std::vector<long> shared(const Plan& plan, int threads) {
    std::vector<long> data(SIZE, 0);  // gone before a late thread comes back: only units may touch it
    auto job = std::make_shared<Job>();
    for (int phase = 0; phase < plan.phases; phase++) job->add(plan.count(phase), [&data, phase](int i) { unit(data, phase, i); });
    pool().run(job, threads);
    return data;
}

int main(int, char** argv) {
    int jobs = atoi(argv[1]);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; caller++)
        callers.emplace_back([&wrong, caller, jobs] {
            for (int i = 0; i < jobs; i++) {
                Plan plan{1 + i % 23, i * 3 + caller};
                if (shared(plan, 1 + i % 4) != alone(plan)) wrong++;
                if (i % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));  // long enough for the workers to fall asleep
            }
        });
    for (std::thread& caller : callers) caller.join();
    return wrong > 100 ? 100 : wrong.load();
}
