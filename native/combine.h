// Adding up: elements of several ranks into one, in the order of the ranks.
#pragma once

#include <cstddef>

namespace dream {

// outs[0][i], ..., outs[places - 1][i]: the op over sources[0][i], ..., sources[ranks - 1][i]. Each
// out may be one of the sources.
using Combine = void (*)(const char *const *sources, int ranks, char *const *outs, int places,
                         size_t count);

// The fastest that this processor has; null where there is no such thing.
Combine combine_of(int dtype, int op);

size_t size_of(int dtype);  // bytes; 0: no such dtype

}  // namespace dream
