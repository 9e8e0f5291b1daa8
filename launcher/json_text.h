// JSON text of another process or of a file, parsed into a document that may be compared, copied
// and printed: the JSON library does these by recursion, so that one that nests deep enough would
// end the process. Used by commands that show what they were sent.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "actors/tensor_files/json_depth.h"

namespace optlease {

// Reports and replies need five.
inline constexpr int kJsonDepthMax = 32;

// Discarded (is_discarded()) where it is no JSON, or nests deeper than kJsonDepthMax.
template <class Json>
Json parse_flat_json(const std::string& text) {
  if (json_nests_deeper(text, kJsonDepthMax)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

}  // namespace optlease
