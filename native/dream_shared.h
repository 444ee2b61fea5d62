/* Collectives among the ranks of one host, over memory that they share. The C interface.

   A rank maps the group's memory with dream_shared_open and then calls the collectives, in the
   same order on every rank and one at a time. A call returns 0 (DREAM_DONE), or why not:
   DREAM_AGAIN, after about 0.2 s of waiting, asks the caller to look at its signals and then to
   call dream_shared_again, until something else comes back; whoever does not want to go on calls
   dream_shared_abandon.

   Results are the same bits on every rank, whenever each comes: what is added up is added in the
   order of the ranks. Half precision is added up in float32 and rounded once; a mean is divided
   once, before that rounding. A nan wins a minimum and a maximum. Integers wrap around.

   For another caller than Python, say a TensorFlow op: link with nothing, take the group's address
   as an integer attribute, open the same library (dlopen gives the one that is loaded already),
   look the functions up by name, and in Compute, on a thread that may block:

       int code = dream_shared_all_reduce(group, in, out, count, DREAM_FLOAT32, DREAM_SUM, 0);
       while (code == DREAM_AGAIN)
           code = cancelled() ? dream_shared_abandon(group) : dream_shared_again(group);

   `in` and `out` may be one buffer, must stay where they are until the call is over, and need no
   alignment beyond their element's. */
#ifndef DREAM_SHARED_H
#define DREAM_SHARED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define DREAM_SHARED_VERSION 3
#define DREAM_RIDERS 8 /* numbers that travel with a call */

enum dream_code {
    DREAM_DONE = 0,
    DREAM_AGAIN = 1,        /* still waiting: see above */
    DREAM_MISMATCH = 2,     /* the ranks made different calls: dream_shared_said. Nothing was moved,
                               and the group is as good as before */
    DREAM_GONE = 3,         /* the culprit's process has ended. This and the next two are for good */
    DREAM_STALLED = 4,      /* the culprit did not come, or go on, within the stall time */
    DREAM_LEFT = 5,         /* the culprit closed the group or abandoned a call */
    DREAM_BUSY = 6,         /* a call is under way, or there is none to go on with */
    DREAM_BAD_ARGUMENT = 7, /* no such dtype, op, root or rank; a mean of integers */
    DREAM_BAD_MEMORY = 8,   /* too small, laid out otherwise, or this rank is taken already */
    DREAM_SYSTEM = 9        /* the system refused: errno */
};

enum dream_dtype {
    DREAM_BYTES = 0, /* only moved, never added up */
    DREAM_FLOAT16 = 1,
    DREAM_BFLOAT16 = 2,
    DREAM_FLOAT32 = 3,
    DREAM_FLOAT64 = 4,
    DREAM_INT32 = 5,
    DREAM_INT64 = 6
};

enum dream_op { DREAM_SUM = 0, DREAM_MEAN = 1, DREAM_MIN = 2, DREAM_MAX = 3, DREAM_PRODUCT = 4 };

enum dream_kind {
    DREAM_NOTHING = 0, /* no call was made yet */
    DREAM_BARRIER = 1,
    DREAM_ALL_REDUCE = 2,
    DREAM_REDUCE_SCATTER = 3,
    DREAM_BROADCAST = 4,
    DREAM_ALL_GATHER = 5,
    DREAM_ALL_TO_ALL = 6,
    DREAM_REDUCE_THERE = 7,
    DREAM_SCATTER_THERE = 8
};

/* What a rank lays open before a byte is moved. All of it must be the same on every rank. */
typedef struct dream_signature {
    uint8_t kind, dtype, op, unused;
    int32_t root;
    uint64_t count; /* elements a rank; 0 where lengths says it */
    uint64_t lengths; /* a digest of all_gather's counts */
    uint64_t tag; /* the caller's own */
} dream_signature;

typedef struct dream_shared dream_shared;

/* How many bytes of memory, all zeros at first, a group needs. slot: bytes a rank moves at once, a
   multiple of 4096. 0 where the arguments are out of range. */
size_t dream_shared_bytes(int ranks, size_t slot);

/* Take rank `rank`'s place. slot alike on every rank, and direct: up to so many bytes, at most a
   slot's, each rank adds up everything itself in an all_reduce, which is one wait instead of two.
   fd: a file of at least dream_shared_bytes, which the group owns from now on and closes, whatever
   comes back. Every rank is a process, and its death is seen. Or fd -1, and memory: where it is
   mapped, for ranks that are threads of one process. spin: whether every rank has a core.
   stall: seconds of waiting, less those in which this process was itself stopped. All ranks must
   have opened before any calls. */
int dream_shared_open(dream_shared **group, int fd, void *memory, int ranks, int rank, size_t slot,
                      size_t direct, int spin, double stall);

/* Leave. The others get DREAM_LEFT if they still need this rank. In a forked child: only let go. */
void dream_shared_close(dream_shared *group);

int dream_shared_barrier(dream_shared *group, uint64_t tag);
int dream_shared_all_reduce(dream_shared *group, const void *in, void *out, uint64_t count,
                            int dtype, int op, uint64_t tag);
/* in: ranks * count elements; out: the count of this rank. */
int dream_shared_reduce_scatter(dream_shared *group, const void *in, void *out, uint64_t count,
                                int dtype, int op, uint64_t tag);
/* Buffers that lie in memory of all ranks, rank b's at buffers + b * stride in each one's own map of
   it; no rank writes before all have come. everything: each rank's buffer holds all results, and none
   is written after the call. Else each rank's holds those of its own part, of count / ranks elements
   (whole lines of 64 bytes, the last ranks' may be less), and others may read from it until the next
   call that all make. */
int dream_shared_reduce_there(dream_shared *group, void *buffers, uint64_t stride, uint64_t count,
                              int dtype, int op, int everything, uint64_t tag);
int dream_shared_broadcast(dream_shared *group, void *buffer, uint64_t count, int dtype, int root,
                           uint64_t tag);
/* counts: elements of each rank, in order, the same on all; out: theirs end to end. `in` may be
   where it belongs in `out`. */
int dream_shared_all_gather(dream_shared *group, const void *in, void *out, const uint64_t *counts,
                            int dtype, uint64_t tag);
/* sends, receives: elements to and from each rank, which must agree between every two ranks.
   `in` and `out` are apart. */
int dream_shared_all_to_all(dream_shared *group, const void *in, void *out, const uint64_t *sends,
                            const uint64_t *receives, int dtype, uint64_t tag);

/* From now on DREAM_RIDERS numbers travel with every call, whatever it is: `mine` as they are when it
   starts, and once it is done, `mean` holds the means over the ranks, added up in their order. They
   wait for nothing that the call does not wait for. Both stay where they are until the group is
   closed. A rank that has none counts as zeros. */
void dream_shared_ride(dream_shared *group, const double *mine, double *mean);

/* Go on with a call that gave DREAM_AGAIN. */
int dream_shared_again(dream_shared *group);

/* Give a call up that gave DREAM_AGAIN: the group is over for all. Returns DREAM_LEFT. */
int dream_shared_abandon(dream_shared *group);

/* The rank that a failure is about; -1 without one. */
int dream_shared_culprit(const dream_shared *group);

/* After a mismatch or a failure: what a rank had laid open, in the call that ended so, else in the
   one before. */
dream_signature dream_shared_said(const dream_shared *group, int rank);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
