// What lies in the shared memory, and the protocol.
//
// A collective is a pipeline of chunks. Chunks are numbered through all calls of a group, and chunk
// c lies in slot c % STAGES of every rank. A rank writes to nobody's slots but its own, and says how
// far it is by counters that only it advances:
//
//   called    one for odd calls and one for even: how many calls it has made. The call's signature
//             and its riders lie beside it, and its first chunk is in its slot, when it advances. Every
//             call waits for all ranks' `called` and compares the signatures, so no rank is more
//             than a call ahead, and nobody touches a user's buffer in a call that differs.
//   arrived   how many chunks it has put into its slots (the first of a call: see `called`).
//   reduced   how many chunks it has read from the others and, in a reduction, how many results lie
//             in its own slots.
//
// A reduction of chunk c: each rank puts the parts that the others own; each combines its own part,
// in the order of the ranks, and leaves the result where its own part of its own slot is; each takes
// the others' results. (Of two ranks, and of little, each puts all and combines all, and nothing is
// taken.) The order of the steps, on every rank: put 0, then for each c: put c + 1, combine c, take
// c - 1. `reduced` of c + 2 hence says that c was taken, and a slot is written again once all ranks
// have reduced c + 2, or have all come to a later call. Each step waits only for steps that come
// earlier in this order: nobody waits in a circle.
//
// Order of memory: data are written, then the counter is stored (release); the counter is loaded
// (acquire), then data are read. A waiter that is to sleep adds itself to `sleepers`, then looks at
// the value again; who advances stores the value, then looks at `sleepers`: these four are
// sequentially consistent, so that one of the two sees the other. The kernel compares the value once
// more before it sleeps. Counters wrap around; only their differences count.
//
// Who waits looks every 50 ms whether the other still lives. Each process holds a lock on its own
// byte of the memory's file, which the kernel lets go when the process ends, however it does, also
// where processes do not see one another's pids. The first to see a failure writes it to `failure`;
// everybody then reports that one, and the group is over.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "dream_shared.h"

namespace dream {

constexpr uint32_t STAGES = 4;
constexpr size_t PAGE = 4096;
constexpr int MOST_RANKS = 256;

struct Counter {
    std::atomic<uint32_t> value;
    std::atomic<uint32_t> sleepers;
};

struct alignas(64) Opening {
    Counter called;
    dream_signature signature;
    double riders[DREAM_RIDERS];
};

struct alignas(128) Place {
    Opening openings[2];
    alignas(128) Counter arrived;
    alignas(128) Counter reduced;
    alignas(128) std::atomic<uint64_t> waits_for;  // see waiting.cpp
    std::atomic<int32_t> core;                     // where it last ran
    std::atomic<uint32_t> present;
    std::atomic<uint32_t> left;
};

struct alignas(128) Head {
    std::atomic<uint64_t> layout;   // 0 until the first rank opens
    std::atomic<uint64_t> failure;  // code << 32 | culprit; 0 while all is well
};

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Counter) == 8, "futex words");
static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared between processes");

// Where things are: the head, a place for each rank, the lengths of all_to_all (for odd and even
// calls: what each rank sends to and receives from each), the slots.
struct Layout {
    char *memory = nullptr;
    int ranks = 0;
    size_t slot = 0;

    size_t lengths_at() const { return sizeof(Head) + sizeof(Place) * ranks; }
    size_t slots_at() const {
        size_t end = lengths_at() + sizeof(uint64_t) * 4 * ranks * ranks;
        return (end + PAGE - 1) / PAGE * PAGE;
    }
    size_t bytes() const { return slots_at() + slot * STAGES * ranks; }

    Head &head() const { return *reinterpret_cast<Head *>(memory); }
    Place &place(int rank) const { return reinterpret_cast<Place *>(memory + sizeof(Head))[rank]; }
    uint64_t *lengths(int rank, uint32_t call) const {
        auto all = reinterpret_cast<uint64_t *>(memory + lengths_at());
        return all + (size_t(rank) * 2 + (call & 1)) * 2 * ranks;
    }
    char *at(int rank, uint32_t chunk) const {
        return memory + slots_at() + slot * (size_t(rank) * STAGES + chunk % STAGES);
    }
};

}  // namespace dream
