// A call from its first step to its last. Each step waits first and then works, so that a step
// whose wait was interrupted is simply taken again.
#include <algorithm>
#include <cstring>

#include "combine.h"
#include "waiting.h"

namespace dream {
namespace {

bool reduces(const dream_shared &g) {
    return adds(g.call.said.kind);
}

uint32_t chunks_of(const dream_shared &g) {
    if (g.call.said.kind == DREAM_BARRIER) return 0;
    return reduces(g) ? reduction_chunks(g) : move_chunks(g);
}

void put(dream_shared &g, uint32_t chunk) {
    return reduces(g) ? put_parts(g, chunk) : put_pieces(g, chunk);
}

// Until all have taken what a slot held before.
int await_slot(dream_shared &g, uint32_t chunk) {
    if (reached(g.safe, chunk + 1 - STAGES)) return DREAM_DONE;
    for (int rank = 0; rank < g.ranks; ++rank)
        if (rank != g.rank)
            if (int code = await(g, rank, Which::reduced, chunk + 3 - STAGES)) return code;
    return DREAM_DONE;
}

int lay_open(dream_shared &g) {
    if (g.call.said.kind != DREAM_BARRIER) {
        if (int code = await_slot(g, g.first)) return code;
        bool some = g.call.said.kind == DREAM_ALL_TO_ALL || chunks_of(g);
        if (some) put(g, g.first);
    }
    uint64_t *lengths = g.shared.lengths(g.rank, g.calls);
    if (g.call.said.kind == DREAM_ALL_TO_ALL) {
        std::copy(g.call.sends.begin(), g.call.sends.end(), lengths);
        std::copy(g.call.receives.begin(), g.call.receives.end(), lengths + g.ranks);
    }
    Opening &own = g.opening(g.rank);
    own.signature = g.call.said;
    if (g.riding) std::copy(g.riding, g.riding + DREAM_RIDERS, own.riders);
    advance(g, own.called, g.calls);
    return DREAM_DONE;
}

void take_riders(dream_shared &g) {
    for (int i = 0; i < DREAM_RIDERS; ++i) {
        double sum = 0;
        for (int rank = 0; rank < g.ranks; ++rank) sum += g.opening(rank).riders[i];
        g.rode[i] = sum / g.ranks;
    }
}

bool lengths_agree(const dream_shared &g) {
    for (int from = 0; from < g.ranks; ++from)
        for (int to = 0; to < g.ranks; ++to)
            if (g.shared.lengths(from, g.calls)[to] != g.shared.lengths(to, g.calls)[g.ranks + from])
                return false;
    return true;
}

int compare(dream_shared &g) {
    Which which = g.calls & 1 ? Which::called_odd : Which::called_even;
    for (int rank = 0; rank < g.ranks; ++rank)
        if (int code = await(g, rank, which, g.calls)) return code;
    g.safe = g.first;
    bool same = true;
    for (int rank = 0; rank < g.ranks; ++rank)
        same &= !std::memcmp(&g.opening(rank).signature, &g.call.said, sizeof g.call.said);
    if (same && g.call.said.kind == DREAM_ALL_TO_ALL) same = lengths_agree(g);
    if (!same) return DREAM_MISMATCH;
    if (g.rode) take_riders(g);
    g.chunks = chunks_of(g);
    return DREAM_DONE;
}

int put_next(dream_shared &g, uint32_t chunk) {
    if (int code = await_slot(g, chunk)) return code;
    put(g, chunk);
    advance(g, g.own().arrived, chunk + 1);
    return DREAM_DONE;
}

int read_others(dream_shared &g, uint32_t chunk) {
    if (int code = reduces(g) ? combine_part(g, chunk) : take_pieces(g, chunk)) return code;
    advance(g, g.own().reduced, chunk + 1);
    return DREAM_DONE;
}

// Steps 2, 3, 4 are put 1, combine 0, take -1; then the same for the next chunk.
int take_step(dream_shared &g) {
    if (g.step == 0) return lay_open(g);
    if (g.step == 1) return compare(g);
    uint32_t turn = (g.step - 2) / 3;
    switch ((g.step - 2) % 3) {
        case 0: return turn + 1 < g.chunks ? put_next(g, g.first + turn + 1) : DREAM_DONE;
        case 1: return turn < g.chunks ? read_others(g, g.first + turn) : DREAM_DONE;
        default: return turn && reduces(g) ? take_results(g, g.first + turn - 1) : DREAM_DONE;
    }
}

bool over(const dream_shared &g) { return g.step >= 2 && (g.step - 2) / 3 > g.chunks; }

// What each rank said in this call, else in the one before.
void remember(dream_shared &g) {
    for (int rank = 0; rank < g.ranks; ++rank) {
        const Opening &now = g.opening(rank), &before = g.shared.place(rank).openings[~g.calls & 1];
        bool came = reached(now.called.value.load(std::memory_order_acquire), g.calls);
        bool known = reached(before.called.value.load(std::memory_order_acquire), g.calls - 1);
        g.said[rank] = came ? now.signature : known ? before.signature : dream_signature{};
    }
}

int end(dream_shared &g, int code) {
    if (code == DREAM_DONE)
        g.first += g.chunks;
    else
        remember(g);
    g.active = false;
    return code;
}

}  // namespace

int run(dream_shared &g) {
    if (int code = failure(g)) return end(g, code);
    for (; !over(g); ++g.step) {
        int code = take_step(g);
        if (code == DREAM_AGAIN) return code;
        if (code != DREAM_DONE) return end(g, code);
        g.waited = g.looked = 0;
        if (g.step == 1 && !g.chunks) break;
    }
    return end(g, DREAM_DONE);
}

}  // namespace dream
