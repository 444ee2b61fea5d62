// broadcast, all_gather and all_to_all: what is put into a slot and taken by the others.
#include <algorithm>
#include <cstring>

#include "combine.h"
#include "waiting.h"

namespace dream {
namespace {

// Bytes [from, from + count) of a buffer, at `slot` bytes into a chunk's slot.
struct Piece {
    uint64_t from = 0, count = 0;
    size_t slot = 0;
};

bool to_each(const dream_shared &g) { return g.call.said.kind == DREAM_ALL_TO_ALL; }

// Bytes of one flow in a chunk: only all_to_all has several in a slot.
size_t room(const dream_shared &g) {
    return to_each(g) ? g.shared.slot / g.ranks / 64 * 64 : g.shared.slot;
}

// Elements that go from one rank to another.
uint64_t flow(const dream_shared &g, int from, int to) {
    const Call &call = g.call;
    if (call.said.kind == DREAM_BROADCAST) return from == call.said.root ? call.said.count : 0;
    if (!to_each(g)) return call.receives[from];
    return from == g.rank ? call.sends[to] : call.receives[from];
}

Piece piece(const dream_shared &g, uint32_t chunk, int from, int to) {
    uint64_t begin = uint64_t(chunk - g.first) * room(g), all = flow(g, from, to) * g.size();
    uint64_t count = all > begin ? std::min<uint64_t>(all - begin, room(g)) : 0;
    return {begin, count, to_each(g) ? to * room(g) : 0};
}

// Where in a buffer that holds one rank's elements after another's.
size_t offset(const dream_shared &g, const std::vector<uint64_t> &counts, int rank) {
    uint64_t before = 0;
    for (int one = 0; one < rank; ++one) before += counts[one];
    return before * g.size();
}

size_t place_in_out(const dream_shared &g, int rank) {
    return g.call.said.kind == DREAM_BROADCAST ? 0 : offset(g, g.call.receives, rank);
}

size_t place_in_in(const dream_shared &g, int rank) {
    return to_each(g) ? offset(g, g.call.sends, rank) : 0;
}

}  // namespace

uint32_t move_chunks(const dream_shared &g) {
    uint64_t most = g.call.said.count;
    for (uint64_t count : g.call.receives) most = std::max(most, count);
    if (to_each(g))  // other ranks' flows count too: all make the same number of steps
        for (int rank = 0; rank < g.ranks; ++rank) {
            const uint64_t *sends = g.shared.lengths(rank, g.calls);
            most = std::max(most, *std::max_element(sends, sends + g.ranks));
        }
    return uint32_t((most * g.size() + room(g) - 1) / room(g));
}

void put_pieces(dream_shared &g, uint32_t chunk) {
    for (int rank = 0; rank < g.ranks; ++rank) {
        Piece one = piece(g, chunk, g.rank, rank);
        if (!one.count || rank == g.rank) continue;
        std::memcpy(g.shared.at(g.rank, chunk) + one.slot,
                    g.call.in + place_in_in(g, rank) + one.from, one.count);
        if (!to_each(g)) return;  // all take the same
    }
}

int take_pieces(dream_shared &g, uint32_t chunk) {
    for (int turn = 0; turn < g.ranks; ++turn) {
        int rank = (g.rank + turn) % g.ranks;
        Piece one = piece(g, chunk, rank, g.rank);
        if (!one.count) continue;
        const char *source = g.shared.at(rank, chunk) + one.slot;
        if (rank == g.rank) source = g.call.in + place_in_in(g, rank) + one.from;
        char *target = g.call.out + place_in_out(g, rank) + one.from;
        if (source == target) continue;
        if (chunk != g.first)
            if (int code = await(g, rank, Which::arrived, chunk + 1)) return code;
        std::memcpy(target, source, one.count);
    }
    return DREAM_DONE;
}

}  // namespace dream
