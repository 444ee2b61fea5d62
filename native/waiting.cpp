#include "waiting.h"

#include <cerrno>
#include <chrono>
#include <climits>
#include <ctime>

#include <fcntl.h>
#include <sched.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

namespace dream {
namespace {

constexpr double SPIN = 50e-6, NAP = 0.05, TURN = 0.2;  // seconds
constexpr double MOST = 1.0;  // that a look adds to a wait
constexpr uint64_t WAITS = uint64_t(1) << 63;

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

#ifdef __linux__
int this_core() { return sched_getcpu(); }
void sleep_on(std::atomic<uint32_t> &word, uint32_t seen) {
    timespec limit{0, long(NAP * 1e9)};
    syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}
void wake(std::atomic<uint32_t> &word) {
    syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
#else
int this_core() { return -1; }
void sleep_on(std::atomic<uint32_t> &, uint32_t) {
    timespec limit{0, 200000};
    nanosleep(&limit, nullptr);
}
void wake(std::atomic<uint32_t> &) {}
#endif

Counter &counter_of(const dream_shared &g, int rank, Which which) {
    Place &place = g.shared.place(rank);
    switch (which) {
        case Which::called_even: return place.openings[0].called;
        case Which::called_odd: return place.openings[1].called;
        case Which::arrived: return place.arrived;
        default: return place.reduced;
    }
}

bool has(const Counter &counter, uint32_t value) {
    return reached(counter.value.load(std::memory_order_acquire), value);
}

struct flock byte_of(int rank) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
}

// A lock of this very process is not shown, which is right: ranks that are threads live as long as
// this one, and have no file.
bool is_gone(const dream_shared &g, int rank) {
    if (g.fd < 0 || !g.shared.place(rank).present.load(std::memory_order_acquire)) return false;
    struct flock lock = byte_of(rank);
    return fcntl(g.fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

uint64_t packed(int rank, Which which, uint32_t value) {
    return WAITS | uint64_t(which) << 48 | uint64_t(rank) << 32 | value;
}

// The end of the chain of who waits for whom: one that does not wait, or that need not any more.
int slowest(const dream_shared &g, int rank) {
    for (int hop = 0; hop < g.ranks; ++hop) {
        uint64_t word = g.shared.place(rank).waits_for.load(std::memory_order_acquire);
        int next = int(word >> 32 & 0xffff);
        if (!(word & WAITS) || next == g.rank) return rank;
        if (has(counter_of(g, next, Which(word >> 48 & 3)), uint32_t(word))) return rank;
        rank = next;
    }
    return rank;
}

// Never where the other waits for this very core.
bool comes_soon(const dream_shared &g, int rank, const Counter &counter, uint32_t value) {
    int other = g.shared.place(rank).core.load(std::memory_order_relaxed);
    if (!g.spin || other == this_core()) return false;
    double end = now() + SPIN;
    do {
        for (int turn = 0; turn < 32; ++turn) {
            if (has(counter, value)) return true;
            relax();
        }
    } while (now() < end);
    return false;
}

void sleep_until(Counter &counter, uint32_t value) {
    counter.sleepers.fetch_add(1);
    uint32_t seen = counter.value.load();
    if (!reached(seen, value)) sleep_on(counter.value, seen);
    counter.sleepers.fetch_sub(1);
}

// A process that was stopped, or whose machine was, has not waited meanwhile.
bool patience_ends(dream_shared &g) {
    double at = now(), since = at - g.looked;
    g.waited += since < MOST ? since : MOST;
    g.looked = at;
    return g.waited > g.stall;
}

int look(dream_shared &g, int rank, const Counter &counter, uint32_t value) {
    if (int code = failure(g)) return code;
    bool left = g.shared.place(rank).left.load(std::memory_order_acquire);
    if (left || is_gone(g, rank)) {
        if (has(counter, value)) return DREAM_DONE;  // it came, then left
        return fail(g, left ? DREAM_LEFT : DREAM_GONE, rank);
    }
    if (patience_ends(g)) return fail(g, DREAM_STALLED, slowest(g, rank));
    return DREAM_DONE;
}

int wait_long(dream_shared &g, int rank, Counter &counter, uint32_t value) {
    double begin = now();
    if (g.looked == 0) g.looked = begin;
    for (;;) {
        sleep_until(counter, value);
        if (has(counter, value)) return DREAM_DONE;
        if (int code = look(g, rank, counter, value)) return code;
        if (now() - begin > TURN) return DREAM_AGAIN;
    }
}

}  // namespace

void advance(dream_shared &g, Counter &counter, uint32_t value) {
    g.own().core.store(this_core(), std::memory_order_relaxed);
    counter.value.store(value);
    if (counter.sleepers.load()) wake(counter.value);
}

int await(dream_shared &g, int rank, Which which, uint32_t value) {
    Counter &counter = counter_of(g, rank, which);
    if (has(counter, value) || comes_soon(g, rank, counter, value)) return DREAM_DONE;
    auto &waits_for = g.own().waits_for;
    waits_for.store(packed(rank, which, value), std::memory_order_release);
    int code = wait_long(g, rank, counter, value);
    if (code != DREAM_AGAIN) waits_for.store(0, std::memory_order_release);
    return code;
}

int fail(dream_shared &g, int code, int culprit) {
    uint64_t none = 0;
    g.shared.head().failure.compare_exchange_strong(none, uint64_t(code) << 32 | uint32_t(culprit));
    return failure(g);
}

int failure(dream_shared &g) {
    uint64_t word = g.shared.head().failure.load(std::memory_order_acquire);
    if (word) g.culprit = int(word & 0xffffffff);
    return int(word >> 32);
}

bool take_place(int fd, int rank) {
    struct flock lock = byte_of(rank);
    return fcntl(fd, F_SETLK, &lock) == 0;
}

}  // namespace dream
