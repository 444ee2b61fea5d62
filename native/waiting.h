// Advancing counters, waiting for them, and noticing that somebody will not come.
#pragma once

#include "group.h"

namespace dream {

enum class Which : uint8_t { called_even, called_odd, arrived, reduced };

// Only this rank's own counters.
void advance(dream_shared &g, Counter &counter, uint32_t value);

// Until a rank's counter has come to value: DREAM_DONE, DREAM_AGAIN, or why it will not.
int await(dream_shared &g, int rank, Which which, uint32_t value);

// Write a failure where all see it, unless there is one: the one that counts.
int fail(dream_shared &g, int code, int culprit);

// The failure that ended the group, or DREAM_DONE.
int failure(dream_shared &g);

bool take_place(int fd, int rank);

inline bool reached(uint32_t value, uint32_t wanted) { return int32_t(value - wanted) >= 0; }

}  // namespace dream
