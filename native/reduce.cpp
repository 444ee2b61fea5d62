// all_reduce and reduce_scatter: what is put into a slot, combined and taken.
#include <algorithm>
#include <cstring>

#include "combine.h"
#include "waiting.h"

namespace dream {
namespace {

constexpr size_t LINE = 64;  // bytes: no two ranks write to one line

// Elements [from, from + count) of the buffer, at `slot` bytes into a chunk's slot.
struct Part {
    uint64_t from = 0, count = 0;
    size_t slot = 0;
};

// Elements that a chunk has room for; a reduction of little is cut into more chunks, down to
// LEAST, so that ranks have something to do while they wait.
constexpr size_t LEAST = 64 * 1024, PIECES = 4;

uint64_t chunk_elements(const dream_shared &g) {
    uint64_t size = g.size(), whole = g.shared.slot / size;
    if (g.call.said.count * size <= g.direct) return whole;
    uint64_t fair = (g.call.said.count / PIECES + LINE) / LINE * LINE;
    return std::min(whole, std::max<uint64_t>(fair, LEAST / size));
}

// Elements of a rank's part of a chunk: whole lines.
uint64_t share(const dream_shared &g, uint64_t elements) {
    uint64_t line = LINE / g.size(), each = (elements + g.ranks - 1) / g.ranks;
    return (each + line - 1) / line * line;
}

Part part_of_all(const dream_shared &g, uint32_t chunk, int owner) {
    uint64_t room = chunk_elements(g), begin = uint64_t(chunk - g.first) * room;
    uint64_t length = std::min(room, g.call.said.count - begin), each = share(g, length);
    if (is_direct(g)) return {begin, length, 0};
    uint64_t from = std::min(length, owner * each), to = std::min(length, (owner + 1) * each);
    return {begin + from, to - from, size_t(from * g.size())};
}

uint64_t scattered_elements(const dream_shared &g) {
    return g.shared.slot / g.ranks / LINE * LINE / g.size();
}

Part part_of_each(const dream_shared &g, uint32_t chunk, int owner) {
    uint64_t room = scattered_elements(g), begin = uint64_t(chunk - g.first) * room;
    uint64_t length = std::min(room, g.call.said.count - begin);
    return {owner * g.call.said.count + begin, length, size_t(owner * room * g.size())};
}

bool scatters(const dream_shared &g) {
    return g.call.said.kind == DREAM_REDUCE_SCATTER || g.call.said.kind == DREAM_SCATTER_THERE;
}

Part part(const dream_shared &g, uint32_t chunk, int owner) {
    return scatters(g) ? part_of_each(g, chunk, owner) : part_of_all(g, chunk, owner);
}

int combine_all(dream_shared &g, uint32_t chunk, const Part &mine, char *out,
                char *copy = nullptr) {
    const char *sources[MOST_RANKS];
    char *outs[] = {out, copy};
    for (int rank = 0; rank < g.ranks; ++rank)
        sources[rank] = rank == g.rank ? g.call.in + mine.from * g.size()
                                       : g.shared.at(rank, chunk) + mine.slot;
    combine_of(g.call.said.dtype, g.call.said.op)(sources, g.ranks, outs, copy ? 2 : 1, mine.count);
    return DREAM_DONE;
}

// Ranks' buffers lie where all reach them: each adds its part up from there, into all of them, or
// only where its own is.
int combine_there(dream_shared &g) {
    char *places[MOST_RANKS];
    uint64_t each = share(g, g.call.said.count), from = std::min(g.call.said.count, g.rank * each);
    uint64_t count = std::min(each, g.call.said.count - from);
    for (int rank = 0; rank < g.ranks; ++rank)
        places[rank] = g.call.out + rank * g.call.stride + from * g.size();
    bool all = g.call.said.kind == DREAM_REDUCE_THERE;
    combine_of(g.call.said.dtype, g.call.said.op)(places, g.ranks, all ? places : places + g.rank,
                                                  all ? g.ranks : 1, count);
    return DREAM_DONE;
}

}  // namespace

bool is_there(const dream_shared &g) {
    return g.call.said.kind == DREAM_REDUCE_THERE || g.call.said.kind == DREAM_SCATTER_THERE;
}

// Little is put whole, and every rank adds all of it up: one wait instead of two. Of two ranks each
// reads as much of the other either way, so there it is always better.
bool is_direct(const dream_shared &g) {
    if (g.call.said.kind != DREAM_ALL_REDUCE) return false;
    return g.ranks <= 2 || g.call.said.count * g.size() <= g.direct;
}

uint32_t reduction_chunks(const dream_shared &g) {
    if (is_there(g)) return 1;
    uint64_t room = scatters(g) ? scattered_elements(g) : chunk_elements(g);
    return uint32_t((g.call.said.count + room - 1) / room);
}

void put_parts(dream_shared &g, uint32_t chunk) {
    if (is_there(g)) return;
    char *slot = g.shared.at(g.rank, chunk);
    if (is_direct(g)) {
        Part all = part(g, chunk, g.rank);
        std::memcpy(slot, g.call.in + all.from * g.size(), all.count * g.size());
        return;
    }
    for (int rank = 0; rank < g.ranks; ++rank) {
        if (rank == g.rank) continue;
        Part theirs = part(g, chunk, rank);
        std::memcpy(slot + theirs.slot, g.call.in + theirs.from * g.size(), theirs.count * g.size());
    }
}

int combine_part(dream_shared &g, uint32_t chunk) {
    if (is_there(g)) return combine_there(g);
    if (chunk != g.first)
        for (int rank = 0; rank < g.ranks; ++rank)
            if (int code = await(g, rank, Which::arrived, chunk + 1)) return code;
    Part mine = part(g, chunk, g.rank);
    if (scatters(g)) {
        uint64_t from = mine.from - g.rank * g.call.said.count;
        return combine_all(g, chunk, mine, g.call.out + from * g.size());
    }
    if (is_direct(g))
        return combine_all(g, chunk, mine, g.call.out + mine.from * g.size());
    char *result = g.shared.at(g.rank, chunk) + mine.slot;
    return combine_all(g, chunk, mine, g.call.out + mine.from * g.size(), result);
}

int take_results(dream_shared &g, uint32_t chunk) {
    if (scatters(g) || is_direct(g)) return DREAM_DONE;
    for (int turn = 1; turn < g.ranks; ++turn) {
        int rank = (g.rank + turn) % g.ranks;
        if (int code = await(g, rank, Which::reduced, chunk + 1)) return code;
        if (is_there(g)) continue;
        Part theirs = part(g, chunk, rank);
        std::memcpy(g.call.out + theirs.from * g.size(), g.shared.at(rank, chunk) + theirs.slot,
                    theirs.count * g.size());
    }
    return DREAM_DONE;
}

}  // namespace dream
