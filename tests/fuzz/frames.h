// Frames for the fuzzers that take them: one of every kind from the real encoder, and what makes a
// frame of bytes that are none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shm/contract/messages.h"

namespace optlease::fuzz {

// In ascending order. A kind that is added to the contract is in it.
const std::vector<MessageKind>& every_kind();
std::vector<std::string> frame_of_every_kind();

// The bytes with a header that is right for them where it is long enough: magic, version, length,
// and a kind that there is. So a mutation reaches what lies behind.
std::string repaired(std::string_view bytes);

// The length fields of the body say what follows it, the header what the whole frame is.
void set_lengths(std::string* frame);

StepRecord valid_record(Step step);

}  // namespace optlease::fuzz
