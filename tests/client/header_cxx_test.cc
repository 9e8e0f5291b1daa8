// The C header as C++ sees it, with every pedantic warning an error, and what of the shared library
// other programs can see.
#include "actors/client/optlease.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <type_traits>

namespace {

static_assert(std::is_standard_layout_v<optlease_attach_options> &&
              std::is_trivially_copyable_v<optlease_step_options> &&
              std::is_trivially_copyable_v<optlease_tensor_info>);

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  if (pipe == nullptr) return {};
  std::string text;
  std::array<char, 4096> part;
  while (const size_t got = std::fread(part.data(), 1, part.size(), pipe.get()))
    text.append(part.data(), got);
  return text;
}

TEST(ClientHeader, IsPartOfACxxProgram) {
  EXPECT_EQ(optlease_abi_version(), OPTLEASE_ABI_VERSION);
  EXPECT_STREQ(optlease_last_error(nullptr), "");
  EXPECT_EQ(optlease_detach(nullptr), OPTLEASE_OK);
}

TEST(ClientLibrary, HasAVersionedSoname) {
  Dl_info where{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&optlease_attach), &where), 0);
  const std::string dynamic = output_of(std::string("readelf -d ") + where.dli_fname);
  EXPECT_NE(dynamic.find("liboptlease_client.so.1]"), std::string::npos) << dynamic;
}

TEST(ClientLibrary, ShowsOnlyTheCInterface) {
  Dl_info where{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&optlease_attach), &where), 0);
  const std::string names =
      output_of(std::string("nm -D --defined-only -f posix ") + where.dli_fname);
  ASSERT_NE(names.find("optlease_step@@OPTLEASE_1"), std::string::npos) << names;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find('\n', at), names.size());
    const std::string line = names.substr(at, end - at);
    EXPECT_TRUE(line.starts_with("optlease_") || line.starts_with("OPTLEASE_1 ")) << line;
    at = end + 1;
  }
}

}  // namespace
