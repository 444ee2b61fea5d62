#include "combine.h"

#include <cstdint>
#include <type_traits>

#include "dream_shared.h"
#include "numbers.h"

namespace dream {
namespace {

// An element as it lies in memory, and what it is added up in.
template <class T>
struct Element {
    using Sum = T;
    static DREAM_INLINE T load(T value) { return value; }
    static DREAM_INLINE T store(T value) { return value; }
};
template <>
struct Element<half> {
    using Sum = float;
    static DREAM_INLINE float load(half value) { return widen(value); }
    static DREAM_INLINE half store(float value) { return to_half(value); }
};
template <>
struct Element<brain> {
    using Sum = float;
    static DREAM_INLINE float load(brain value) { return widen(value); }
    static DREAM_INLINE brain store(float value) { return to_brain(value); }
};

// Signed numbers that overflow are undefined; unsigned ones wrap around.
template <class S, bool = std::is_integral_v<S>>
struct Wrapping {
    using Type = S;
};
template <class S>
struct Wrapping<S, true> {
    using Type = std::make_unsigned_t<S>;
};

struct Sum {
    template <class S>
    static DREAM_INLINE S join(S a, S b) {
        using W = typename Wrapping<S>::Type;
        return S(W(a) + W(b));
    }
    template <class S>
    static DREAM_INLINE S end(S total, int) { return total; }
};
struct Mean : Sum {
    template <class S>
    static DREAM_INLINE S end(S total, int ranks) { return total / S(ranks); }
};
// The same bits, where the number of ranks is a power of two, in a third of the time.
struct ScaledMean : Sum {
    template <class S>
    static DREAM_INLINE S end(S total, int ranks) { return total * (S(1) / S(ranks)); }
};
struct Product : Sum {
    template <class S>
    static DREAM_INLINE S join(S a, S b) {
        using W = typename Wrapping<S>::Type;
        return S(W(a) * W(b));
    }
};
struct Min : Sum {
    template <class S>
    static DREAM_INLINE S join(S a, S b) { return (a < b) | (a != a) ? a : b; }
};
struct Max : Sum {
    template <class S>
    static DREAM_INLINE S join(S a, S b) { return (a > b) | (a != a) ? a : b; }
};

constexpr size_t BLOCK = 1024;

// Of what a loop writes nothing is read in another turn of it: an output is one of the sources, or
// apart from them.
#if defined(__clang__)
#define DREAM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DREAM_INDEPENDENT _Pragma("GCC ivdep")
#endif

template <class T, class Op>
DREAM_INLINE void combine_two(const T *a, const T *b, T *out, size_t count) {
    using E = Element<T>;
    DREAM_INDEPENDENT
    for (size_t i = 0; i < count; ++i)
        out[i] = E::store(Op::end(Op::join(E::load(a[i]), E::load(b[i])), 2));
}

template <class T, class Op>
DREAM_INLINE void combine_many(const char *const *sources, int ranks, size_t from, T *out,
                               size_t count) {
    using E = Element<T>;
    typename E::Sum total[BLOCK];
    for (int rank = 0; rank < ranks; ++rank) {
        const T *next = reinterpret_cast<const T *>(sources[rank]) + from;
        if (rank == 0)
            for (size_t i = 0; i < count; ++i) total[i] = E::load(next[i]);
        else
            for (size_t i = 0; i < count; ++i) total[i] = Op::join(total[i], E::load(next[i]));
    }
    for (size_t i = 0; i < count; ++i) out[i] = E::store(Op::end(total[i], ranks));
}

// A block at a time, in the first cache.
template <class T, class Op>
DREAM_INLINE void combine(const char *const *sources, int ranks, char *const *outs, int places,
                          size_t count) {
    T *out = reinterpret_cast<T *>(outs[0]);
    for (size_t from = 0; from < count; from += BLOCK) {
        size_t n = count - from < BLOCK ? count - from : BLOCK;
        if (ranks == 2)
            combine_two<T, Op>(reinterpret_cast<const T *>(sources[0]) + from,
                               reinterpret_cast<const T *>(sources[1]) + from, out + from, n);
        else
            combine_many<T, Op>(sources, ranks, from, out + from, n);
        for (int place = 1; place < places; ++place)
            std::memcpy(outs[place] + from * sizeof(T), out + from, n * sizeof(T));
    }
}

#define VARIANT(NAME, ATTRIBUTE)                                                       \
    struct NAME {                                                                      \
        template <class T, class Op>                                                   \
        ATTRIBUTE static void run(const char *const *sources, int ranks,               \
                                  char *const *outs, int places, size_t count) {       \
            if constexpr (std::is_same_v<Op, Mean>)                                    \
                if (!(ranks & (ranks - 1)))                                            \
                    return combine<T, ScaledMean>(sources, ranks, outs, places, count); \
            combine<T, Op>(sources, ranks, outs, places, count);                       \
        }                                                                              \
    }

VARIANT(Plain, );
#if defined(__x86_64__)
VARIANT(Wide, __attribute__((target("avx2"))));
#endif

template <class V, class T>
Combine of_op(int op) {
    switch (op) {
        case DREAM_SUM: return V::template run<T, Sum>;
        case DREAM_MEAN:
            if constexpr (std::is_integral_v<T>) return nullptr;
            else return V::template run<T, Mean>;
        case DREAM_MIN: return V::template run<T, Min>;
        case DREAM_MAX: return V::template run<T, Max>;
        case DREAM_PRODUCT: return V::template run<T, Product>;
        default: return nullptr;
    }
}

template <class V>
Combine of_dtype(int dtype, int op) {
    switch (dtype) {
        case DREAM_FLOAT16: return of_op<V, half>(op);
        case DREAM_BFLOAT16: return of_op<V, brain>(op);
        case DREAM_FLOAT32: return of_op<V, float>(op);
        case DREAM_FLOAT64: return of_op<V, double>(op);
        case DREAM_INT32: return of_op<V, int32_t>(op);
        case DREAM_INT64: return of_op<V, int64_t>(op);
        default: return nullptr;
    }
}

}  // namespace

Combine combine_of(int dtype, int op) {
#if defined(__x86_64__)
    static const bool wide = __builtin_cpu_supports("avx2");
    if (wide) return of_dtype<Wide>(dtype, op);
#endif
    return of_dtype<Plain>(dtype, op);
}

size_t size_of(int dtype) {
    static const size_t sizes[] = {1, 2, 2, 4, 8, 4, 8};
    return dtype < 0 || dtype > DREAM_INT64 ? 0 : sizes[dtype];
}

}  // namespace dream
