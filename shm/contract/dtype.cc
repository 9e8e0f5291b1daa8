#include "shm/contract/dtype.h"

#include <cctype>
#include <string>

namespace optlease {

uint32_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
  }
  return 0;
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
  }
  return "?";
}

bool parse_dtype(std::string_view name, DType* out) {
  std::string upper;
  for (char c : name)
    upper.push_back(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (upper == name_of(dtype)) {
      *out = dtype;
      return true;
    }
  }
  return false;
}

}  // namespace optlease
