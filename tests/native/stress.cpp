// Random calls of random lengths among ranks that are threads, or processes, each result checked.
//     stress threads|processes RANKS CALLS SEED
// Now and then one rank makes another call than the rest, or comes late.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../native/dream_shared.h"
#include "../../native/numbers.h"

namespace {

constexpr size_t SLOT = 8192, DIRECT = 2048;
constexpr uint64_t MOST = 3 * SLOT;  // elements: some dozens of chunks

// What all ranks know of a call: drawn from one seed.
struct Plan {
    int kind, dtype, op, root, odd, late;
    uint64_t count, salt;
    std::vector<uint64_t> counts;
};

Plan draw(std::mt19937_64 &random, int ranks) {
    auto below = [&](uint64_t end) { return random() % end; };
    Plan plan{};
    plan.kind = int(1 + below(6));
    plan.dtype = int(1 + below(6));
    plan.op = int(below(5));
    if (plan.op == DREAM_MEAN && plan.dtype >= DREAM_INT32) plan.op = DREAM_SUM;
    plan.root = int(below(ranks));
    uint64_t most[] = {4, 300, 3000, MOST};
    plan.count = below(most[below(4)]);
    plan.salt = below(1000);
    plan.odd = below(25) ? -1 : int(below(ranks));
    plan.late = below(50) ? -1 : int(below(ranks));
    for (int one = 0; one < ranks * ranks; ++one) plan.counts.push_back(below(plan.count + 1));
    return plan;
}

double element(const Plan &plan, int rank, uint64_t at, int ranks) {
    uint64_t value = 1 + (at * 7 + rank * 3 + plan.salt) % 6;  // a product of 4 fits half precision
    return double(plan.op == DREAM_MEAN ? value * ranks : value);
}

size_t size_of(int dtype) {
    size_t sizes[] = {1, 2, 2, 4, 8, 4, 8};
    return sizes[dtype];
}

void store(char *buffer, int dtype, uint64_t at, double value) {
    char *place = buffer + at * size_of(dtype);
    auto put = [&](auto typed) { std::memcpy(place, &typed, sizeof typed); };
    switch (dtype) {
        case DREAM_FLOAT16: return put(dream::to_half(float(value)));
        case DREAM_BFLOAT16: return put(dream::to_brain(float(value)));
        case DREAM_FLOAT32: return put(float(value));
        case DREAM_FLOAT64: return put(value);
        case DREAM_INT32: return put(int32_t(value));
        default: return put(int64_t(value));
    }
}

double joined(const Plan &plan, uint64_t at, int ranks) {
    double total = element(plan, 0, at, ranks);
    for (int rank = 1; rank < ranks; ++rank) {
        double next = element(plan, rank, at, ranks);
        if (plan.op == DREAM_MIN) total = next < total ? next : total;
        else if (plan.op == DREAM_MAX) total = next > total ? next : total;
        else if (plan.op == DREAM_PRODUCT) total *= next;
        else total += next;
    }
    return plan.op == DREAM_MEAN ? total / ranks : total;
}

struct Buffer {
    std::vector<char> bytes;
    int dtype;
    Buffer(uint64_t count, int dtype) : bytes((count + 1) * size_of(dtype)), dtype(dtype) {}
    void set(uint64_t at, double value) { store(bytes.data(), dtype, at, value); }
    bool operator==(const Buffer &other) const { return bytes == other.bytes; }
};

class Rank {
  public:
    Rank(dream_shared *group, int rank, int ranks) : group_(group), rank_(rank), ranks_(ranks) {}

    bool all(int calls, uint64_t seed) {
        std::mt19937_64 random(seed);
        for (int call = 0; call < calls; ++call) {
            Plan plan = draw(random, ranks_);
            if (plan.late == rank_) usleep(1000);
            if (!one(plan)) {
                std::fprintf(stderr, "rank %d of %d, seed %llu: call %d, kind %d, dtype %d, op %d, "
                             "count %llu is wrong\n", rank_, ranks_, (unsigned long long)seed, call,
                             plan.kind, plan.dtype, plan.op, (unsigned long long)plan.count);
                return false;
            }
        }
        return true;
    }

  private:
    bool one(const Plan &plan) {
        if (plan.odd < 0) return made(plan) == DREAM_DONE && good_;
        int code = plan.odd == rank_ ? finish(dream_shared_barrier(group_, 1)) : made(plan);
        return code == DREAM_MISMATCH && untouched_ &&
               dream_shared_said(group_, plan.odd).tag == 1;
    }

    int finish(int code) {
        while (code == DREAM_AGAIN) code = dream_shared_again(group_);
        untouched_ = true;
        return code;
    }

    int made(const Plan &plan) {
        switch (plan.kind) {
            case DREAM_BARRIER: return barrier();
            case DREAM_ALL_REDUCE: return all_reduce(plan);
            case DREAM_REDUCE_SCATTER: return reduce_scatter(plan);
            case DREAM_BROADCAST: return broadcast(plan);
            case DREAM_ALL_GATHER: return all_gather(plan);
            default: return all_to_all(plan);
        }
    }

    int judge(int code, const Buffer &out, const Buffer &before, const Buffer &expected) {
        code = finish(code);
        good_ = out == expected;
        untouched_ = out == before;
        return code;
    }

    int barrier() {
        good_ = true;
        return finish(dream_shared_barrier(group_, 0));
    }

    int all_reduce(const Plan &plan) {
        Buffer in(plan.count, plan.dtype), out = in, expected = in;
        for (uint64_t at = 0; at < plan.count; ++at) {
            in.set(at, element(plan, rank_, at, ranks_));
            expected.set(at, joined(plan, at, ranks_));
        }
        bool in_place = plan.salt & 1;
        if (in_place) out = in;
        Buffer before = out;
        char *source = in_place ? out.bytes.data() : in.bytes.data();
        return judge(dream_shared_all_reduce(group_, source, out.bytes.data(), plan.count,
                                             plan.dtype, plan.op, 0), out, before, expected);
    }

    int reduce_scatter(const Plan &plan) {
        uint64_t each = plan.count / ranks_;
        Buffer in(each * ranks_, plan.dtype), out(each, plan.dtype), before = out, expected = out;
        for (uint64_t at = 0; at < each * ranks_; ++at) in.set(at, element(plan, rank_, at, ranks_));
        for (uint64_t at = 0; at < each; ++at)
            expected.set(at, joined(plan, each * rank_ + at, ranks_));
        return judge(dream_shared_reduce_scatter(group_, in.bytes.data(), out.bytes.data(), each,
                                                 plan.dtype, plan.op, 0), out, before, expected);
    }

    int broadcast(const Plan &plan) {
        Buffer out(plan.count, plan.dtype), expected = out;
        for (uint64_t at = 0; at < plan.count; ++at) {
            out.set(at, element(plan, rank_, at, ranks_));
            expected.set(at, element(plan, plan.root, at, ranks_));
        }
        Buffer before = out;
        return judge(dream_shared_broadcast(group_, out.bytes.data(), plan.count, plan.dtype,
                                            plan.root, 0), out, before, expected);
    }

    int all_gather(const Plan &plan) {
        uint64_t all = 0, own = plan.counts[rank_];
        for (int rank = 0; rank < ranks_; ++rank) all += plan.counts[rank];
        Buffer in(own, plan.dtype), out(all, plan.dtype), before = out, expected = out;
        for (uint64_t at = 0; at < own; ++at) in.set(at, element(plan, rank_, at, ranks_));
        uint64_t to = 0;
        for (int rank = 0; rank < ranks_; ++rank)
            for (uint64_t at = 0; at < plan.counts[rank]; ++at)
                expected.set(to++, element(plan, rank, at, ranks_));
        return judge(dream_shared_all_gather(group_, in.bytes.data(), out.bytes.data(),
                                             plan.counts.data(), plan.dtype, 0),
                     out, before, expected);
    }

    int all_to_all(const Plan &plan) {
        std::vector<uint64_t> sends, receives;
        uint64_t gone = 0, come = 0;
        for (int rank = 0; rank < ranks_; ++rank) {
            sends.push_back(plan.counts[rank_ * ranks_ + rank]);
            receives.push_back(plan.counts[rank * ranks_ + rank_]);
            gone += sends.back(), come += receives.back();
        }
        Buffer in(gone, plan.dtype), out(come, plan.dtype), before = out, expected = out;
        uint64_t from = 0, to = 0;
        for (int rank = 0; rank < ranks_; ++rank) {
            for (uint64_t at = 0; at < sends[rank]; ++at)
                in.set(from++, element(plan, rank_, at + rank, ranks_));
            for (uint64_t at = 0; at < receives[rank]; ++at)
                expected.set(to++, element(plan, rank, at + rank_, ranks_));
        }
        return judge(dream_shared_all_to_all(group_, in.bytes.data(), out.bytes.data(),
                                             sends.data(), receives.data(), plan.dtype, 0),
                     out, before, expected);
    }

    dream_shared *group_;
    int rank_, ranks_;
    bool good_ = true, untouched_ = true;
};

bool opened(int fd, void *memory, int rank, int ranks, int calls, uint64_t seed) {
    dream_shared *group;
    int code = dream_shared_open(&group, fd, memory, ranks, rank, SLOT, DIRECT, 0, 60.0);
    if (code != DREAM_DONE) return false;
    bool good = Rank(group, rank, ranks).all(calls, seed);
    if (good) dream_shared_close(group);
    return good;
}

bool threads(int ranks, int calls, uint64_t seed) {
    size_t bytes = dream_shared_bytes(ranks, SLOT);
    void *memory = ::operator new(bytes, std::align_val_t(4096));
    std::memset(memory, 0, bytes);
    std::vector<std::thread> all;
    std::vector<char> good(ranks);
    for (int rank = 0; rank < ranks; ++rank)
        all.emplace_back([&, rank] { good[rank] = opened(-1, memory, rank, ranks, calls, seed); });
    for (auto &one : all) one.join();
    ::operator delete(memory, std::align_val_t(4096));
    return std::string(good.begin(), good.end()) == std::string(ranks, 1);
}

bool processes(int ranks, int calls, uint64_t seed) {
    int fd = memfd_create("stress", MFD_CLOEXEC);
    if (fd < 0 || posix_fallocate(fd, 0, dream_shared_bytes(ranks, SLOT))) return false;
    for (int rank = 0; rank < ranks; ++rank)
        if (!fork()) exit(!opened(fd, nullptr, rank, ranks, calls, seed));
    bool good = true;
    for (int rank = 0, status; rank < ranks; ++rank) good &= wait(&status) > 0 && status == 0;
    close(fd);
    return good;
}

}  // namespace

int main(int count, char **words) {
    if (count != 5) return 2;
    bool apart = std::string(words[1]) == "processes";
    int ranks = std::atoi(words[2]), calls = std::atoi(words[3]);
    uint64_t seed = std::strtoull(words[4], nullptr, 10);
    bool good = apart ? processes(ranks, calls, seed) : threads(ranks, calls, seed);
    std::printf("%s: %d ranks as %s, %d calls, seed %s\n", good ? "good" : "WRONG", ranks, words[1],
                calls, words[4]);
    return !good;
}
