// The checksum of a chunk in its slot: the sum over its 32-bit words of word * (2 * i + 1), modulo
// 2^64, where i is the word's offset from the chunk's start in the slot. Odd multipliers make every
// single changed word visible, and different ones make swaps visible; a plain sum makes it the same
// for any partition, order or device. Only logical words count: padding between arrays does not.
// Used by the update loops (which touch every word anyway) and by whoever checks a slot at rest.
// Not cryptographic.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace optlease {

// One word's share. Device kernels add these up in any order.
OPTLEASE_HD_INLINE uint64_t checksum_term(uint32_t word, uint64_t word_index) {
  return static_cast<uint64_t>(word) * (2 * word_index + 1);
}

// The sum of the terms of `count` words that start at word_index `first_word_index` of the chunk.
// Any alignment. Host only.
uint64_t checksum_words(const void* words, uint64_t count, uint64_t first_word_index);

// The checksum of a whole Adam chunk of `elements` as it lies in its slot (main, exp_avg and
// exp_avg_sq, shm/contract/geometry.h). Host only.
uint64_t checksum_chunk(const void* slot, uint64_t elements);

}  // namespace optlease
