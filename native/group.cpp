// The C interface: opening and leaving a group, and starting its calls.
#include "group.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "combine.h"
#include "waiting.h"

using namespace dream;

size_t dream_shared::size() const { return size_of(call.said.dtype); }

namespace {

uint64_t digest(const uint64_t *numbers, int count) {
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < count; ++i) hash = (hash ^ numbers[i]) * 1099511628211u ^ hash >> 29;
    return hash;
}

uint64_t layout_of(const dream_shared &g) {
    uint64_t facts[] = {DREAM_SHARED_VERSION, uint64_t(g.ranks), g.shared.slot, g.direct, STAGES};
    return digest(facts, 5) | 1;
}

int map(dream_shared &g, void *memory) {
    if (g.fd < 0) {
        g.shared.memory = static_cast<char *>(memory);
        return memory ? DREAM_DONE : DREAM_BAD_ARGUMENT;
    }
    struct stat file;
    if (fstat(g.fd, &file)) return DREAM_SYSTEM;
    if (size_t(file.st_size) < g.shared.bytes()) return DREAM_BAD_MEMORY;
    if (!take_place(g.fd, g.rank))
        return errno == EAGAIN || errno == EACCES ? DREAM_BAD_MEMORY : DREAM_SYSTEM;
    void *found = mmap(nullptr, g.shared.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, g.fd, 0);
    if (found == MAP_FAILED) return DREAM_SYSTEM;
    g.shared.memory = static_cast<char *>(found);
    g.mapped = true;
    return DREAM_DONE;
}

int enter(dream_shared &g) {
    uint64_t found = 0, mine = layout_of(g);
    if (!g.shared.head().layout.compare_exchange_strong(found, mine) && found != mine)
        return DREAM_BAD_MEMORY;
    if (g.own().present.exchange(1)) return DREAM_BAD_MEMORY;
    return DREAM_DONE;
}

void let_go(dream_shared &g) {
    int kept = errno;
    if (g.mapped) munmap(g.shared.memory, g.shared.bytes());
    if (g.fd >= 0) close(g.fd);
    errno = kept;
}

// One call at a time, by whichever thread; a forked child has none.
class Turn {
  public:
    Turn(dream_shared &g, bool active) : g_(g), mine_(!g.busy.exchange(true)) {
        good_ = mine_ && g.active == active && getpid() == g.owner;
    }
    ~Turn() {
        if (mine_) g_.busy.store(false);
    }
    explicit operator bool() const { return good_; }

  private:
    dream_shared &g_;
    bool mine_, good_;
};

bool is_valid(const dream_signature &said, int ranks) {
    if (said.count >> 48) return false;
    if (adds(said.kind)) return combine_of(said.dtype, said.op) != nullptr;
    return size_of(said.dtype) && said.root >= 0 && said.root < ranks;
}

dream_signature signature(int kind, int dtype, int op, int root, uint64_t count, uint64_t tag) {
    dream_signature said{};
    said.kind = uint8_t(kind), said.dtype = uint8_t(dtype), said.op = uint8_t(op);
    said.root = root, said.count = count, said.tag = tag;
    return said;
}

int start(dream_shared *group, const dream_signature &said, const void *in, void *out,
          const uint64_t *sends = nullptr, const uint64_t *receives = nullptr, size_t stride = 0) {
    dream_shared &g = *group;
    Turn turn(g, false);
    if (!turn) return DREAM_BUSY;
    if (!is_valid(said, g.ranks)) return DREAM_BAD_ARGUMENT;
    g.call.said = said;
    g.call.in = static_cast<const char *>(in);
    g.call.out = static_cast<char *>(out);
    g.call.stride = stride;
    g.call.sends.assign(sends, sends ? sends + g.ranks : sends);
    g.call.receives.assign(receives, receives ? receives + g.ranks : receives);
    g.active = true;
    g.step = g.chunks = 0;
    g.waited = g.looked = 0;
    ++g.calls;
    return run(g);
}

}  // namespace

size_t dream_shared_bytes(int ranks, size_t slot) {
    if (ranks < 1 || ranks > MOST_RANKS || slot < PAGE || slot % PAGE || slot / 64 < size_t(ranks))
        return 0;
    return Layout{nullptr, ranks, slot}.bytes();
}

int dream_shared_open(dream_shared **group, int fd, void *memory, int ranks, int rank, size_t slot,
                      size_t direct, int spin, double stall) {
    *group = nullptr;
    auto g = std::unique_ptr<dream_shared>(new (std::nothrow) dream_shared);
    if (!g) return DREAM_SYSTEM;
    g->fd = fd;
    g->shared = {nullptr, ranks, slot};
    g->ranks = ranks, g->rank = rank, g->direct = direct, g->spin = spin, g->stall = stall;
    g->owner = getpid();
    g->said.resize(ranks > 0 ? ranks : 0);
    bool good = dream_shared_bytes(ranks, slot) && rank >= 0 && rank < ranks && direct <= slot;
    int code = good ? map(*g, memory) : int(DREAM_BAD_ARGUMENT);
    if (code == DREAM_DONE) code = enter(*g);
    if (code == DREAM_DONE)
        *group = g.release();
    else
        let_go(*g);
    return code;
}

void dream_shared_close(dream_shared *group) {
    if (getpid() == group->owner) group->own().left.store(1, std::memory_order_release);
    let_go(*group);
    delete group;
}

int dream_shared_barrier(dream_shared *group, uint64_t tag) {
    return start(group, signature(DREAM_BARRIER, 0, 0, 0, 0, tag), nullptr, nullptr);
}

int dream_shared_all_reduce(dream_shared *group, const void *in, void *out, uint64_t count,
                            int dtype, int op, uint64_t tag) {
    return start(group, signature(DREAM_ALL_REDUCE, dtype, op, 0, count, tag), in, out);
}

int dream_shared_reduce_scatter(dream_shared *group, const void *in, void *out, uint64_t count,
                                int dtype, int op, uint64_t tag) {
    return start(group, signature(DREAM_REDUCE_SCATTER, dtype, op, 0, count, tag), in, out);
}

int dream_shared_reduce_there(dream_shared *group, void *buffers, uint64_t stride, uint64_t count,
                              int dtype, int op, int everything, uint64_t tag) {
    int kind = everything ? DREAM_REDUCE_THERE : DREAM_SCATTER_THERE;
    return start(group, signature(kind, dtype, op, 0, count, tag), buffers, buffers, nullptr,
                 nullptr, stride);
}

int dream_shared_broadcast(dream_shared *group, void *buffer, uint64_t count, int dtype, int root,
                           uint64_t tag) {
    return start(group, signature(DREAM_BROADCAST, dtype, 0, root, count, tag), buffer, buffer);
}

int dream_shared_all_gather(dream_shared *group, const void *in, void *out, const uint64_t *counts,
                            int dtype, uint64_t tag) {
    dream_signature said = signature(DREAM_ALL_GATHER, dtype, 0, 0, 0, tag);
    said.lengths = digest(counts, group->ranks);
    return start(group, said, in, out, nullptr, counts);
}

int dream_shared_all_to_all(dream_shared *group, const void *in, void *out, const uint64_t *sends,
                            const uint64_t *receives, int dtype, uint64_t tag) {
    dream_signature said = signature(DREAM_ALL_TO_ALL, dtype, 0, 0, 0, tag);
    return start(group, said, in, out, sends, receives);
}

void dream_shared_ride(dream_shared *group, const double *mine, double *mean) {
    group->riding = mine, group->rode = mean;
}

int dream_shared_again(dream_shared *group) {
    Turn turn(*group, true);
    return turn ? run(*group) : int(DREAM_BUSY);
}

int dream_shared_abandon(dream_shared *group) {
    Turn turn(*group, true);
    if (!turn) return DREAM_BUSY;
    group->active = false;
    return fail(*group, DREAM_LEFT, group->rank);
}

int dream_shared_culprit(const dream_shared *group) { return group->culprit; }

dream_signature dream_shared_said(const dream_shared *group, int rank) {
    return rank >= 0 && rank < group->ranks ? group->said[rank] : dream_signature{};
}
