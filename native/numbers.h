// Half precision from and to float32, in whole numbers that compilers vectorise everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#define DREAM_INLINE inline __attribute__((always_inline))

namespace dream {

struct half {
    uint16_t bits;
};
struct brain {
    uint16_t bits;
};

DREAM_INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

DREAM_INLINE float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

DREAM_INLINE float widen(brain value) { return float_of(uint32_t(value.bits) << 16); }

DREAM_INLINE float widen(half value) {
    uint32_t sign = uint32_t(value.bits & 0x8000) << 16, body = value.bits & 0x7fff;
    uint32_t shifted = body << 13;
    // Where the exponent is 0, a difference of two normal numbers is exact.
    uint32_t tiny = bits_of(float_of(shifted + (113u << 23)) - float_of(113u << 23));
    uint32_t normal = shifted + (112u << 23), special = shifted + (224u << 23);
    return float_of(sign | (body < 0x0400 ? tiny : body < 0x7c00 ? normal : special));
}

// To the nearest, ties to even; a nan stays a nan.
DREAM_INLINE brain to_brain(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return {uint16_t((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded)};
}

DREAM_INLINE half to_half(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, body = bits & 0x7fffffff;
    uint32_t normal = (body + 0xfff + (body >> 13 & 1) - (112u << 23)) >> 13;
    // Below 2^-14: a sum with 0.5 has its last bit at 2^-24, as such a half has.
    uint32_t tiny = bits_of(float_of(body < 0x38800000 ? body : 0) + 0.5f) - 0x3f000000;
    uint32_t nan = 0x7e00 | (body >> 13 & 0x3ff);
    uint32_t finite = body < 0x38800000 ? tiny : normal;
    uint32_t rounded = body < 0x477ff000 ? finite : 0x7c00;
    return {uint16_t(sign | (body > 0x7f800000 ? nan : rounded))};
}

}  // namespace dream
