// A rank's own side of a group: what one call is, and how far it has come.
#pragma once

#include <atomic>
#include <vector>

#include <unistd.h>

#include "segment.h"

namespace dream {

struct Call {
    dream_signature said{};
    const char *in = nullptr;
    char *out = nullptr;
    size_t stride = 0;  // bytes from a rank's buffer to the next one's, where they lie in a row
    std::vector<uint64_t> sends, receives;  // elements, where they may differ from rank to rank
};

}  // namespace dream

struct dream_shared {
    dream::Layout shared;
    int rank = 0;
    int ranks = 0;
    size_t direct = 0;
    bool spin = false;
    double stall = 0;

    int fd = -1;
    bool mapped = false;
    pid_t owner = 0;

    uint32_t calls = 0;   // this one included
    uint32_t first = 0;   // this call's first chunk
    uint32_t chunks = 0;  // how many it has
    uint32_t safe = 0;    // chunks before this one were taken by all
    uint32_t step = 0;
    dream::Call call;
    bool active = false;
    std::atomic<bool> busy{false};
    double waited = 0;  // seconds, in the wait under way
    double looked = 0;  // when that was last added to; 0: not waiting

    const double *riding = nullptr;  // this rank's riders, and where the means go
    double *rode = nullptr;

    int culprit = -1;
    std::vector<dream_signature> said;

    dream::Place &own() const { return shared.place(rank); }
    dream::Opening &opening(int of) const { return shared.place(of).openings[calls & 1]; }
    size_t size() const;  // bytes of an element of the call
};

namespace dream {

inline bool adds(int kind) {
    return kind == DREAM_ALL_REDUCE || kind == DREAM_REDUCE_SCATTER || kind == DREAM_REDUCE_THERE ||
           kind == DREAM_SCATTER_THERE;
}

// collectives.cpp: from the first step of g.call to its end, or to DREAM_AGAIN.
int run(dream_shared &g);

// reduce.cpp
uint32_t reduction_chunks(const dream_shared &g);
bool is_direct(const dream_shared &g);
bool is_there(const dream_shared &g);
void put_parts(dream_shared &g, uint32_t chunk);
int combine_part(dream_shared &g, uint32_t chunk);
int take_results(dream_shared &g, uint32_t chunk);

// move.cpp
uint32_t move_chunks(const dream_shared &g);
void put_pieces(dream_shared &g, uint32_t chunk);
int take_pieces(dream_shared &g, uint32_t chunk);

}  // namespace dream
