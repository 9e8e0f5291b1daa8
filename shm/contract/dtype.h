// Element types of tensors, as safetensors names them. The numbers are stored in segments.
#pragma once

#include <cstdint>
#include <string_view>

namespace optlease {

// Frozen: append only.
enum class DType : uint32_t { kF32 = 1, kBF16 = 2, kF16 = 3 };

// Bytes an element; 0 for a value that is no DType.
uint32_t bytes_of(DType dtype);
// "F32", "BF16", "F16"; "?" for a value that is no DType.
const char* name_of(DType dtype);
// False where the name is none of the above (case-insensitive); *out is then unchanged.
bool parse_dtype(std::string_view name, DType* out);

}  // namespace optlease
