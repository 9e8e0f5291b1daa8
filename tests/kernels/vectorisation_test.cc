// Disassembles the objects of the inner loops: the compiler must have vectorised them, and no code
// for one instruction set may be visible to the linker under a name that another could share.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace optlease {
namespace {

std::string output_of(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 65536> block;
  for (size_t got; (got = fread(block.data(), 1, block.size(), pipe)) != 0;) {
    text.append(block.data(), got);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}

// Demangled function name -> its instructions.
std::map<std::string, std::vector<std::string>> functions_of(const std::string& object) {
  std::map<std::string, std::vector<std::string>> functions;
  std::istringstream lines(
      output_of(std::string(OPTLEASE_OBJDUMP) + " -d -C --no-show-raw-insn '" + object + "'"));
  std::string current;
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 2 && line.substr(line.size() - 2) == ">:") {
      current = line.substr(line.find('<') + 1);
    } else if (!current.empty()) {
      functions[current].push_back(line);
    }
  }
  return functions;
}

bool has(const std::vector<std::string>& instructions, const std::string& pattern) {
  const std::regex expression(pattern);
  for (const std::string& line : instructions) {
    if (std::regex_search(line, expression)) return true;
  }
  return false;
}

// Every pattern, on registers of `width`, in every function whose name contains `name`.
void expect_packed(const std::string& object, const std::string& name, const std::string& width,
                   const std::vector<std::string>& patterns) {
  int found = 0;
  for (const auto& [function, instructions] : functions_of(object)) {
    if (function.find(name) == std::string::npos) continue;
    ++found;
    for (const std::string& pattern : patterns) {
      EXPECT_TRUE(has(instructions, pattern + "\\s.*%" + width)) << function << ": no " << pattern;
    }
  }
  EXPECT_GE(found, 1) << name << " is not in " << object;
}

struct Build {
  const char* object;
  const char* width;
};
constexpr Build kBuilds[] = {{OPTLEASE_LOOPS_V3_OBJECT, "ymm"}, {OPTLEASE_LOOPS_V4_OBJECT, "zmm"}};

TEST(Vectorisation, AdamUsesPackedFmaSquareRootAndDivide) {
  const std::vector<std::string> patterns = {"vfn?madd\\d+ps", "vsqrtps", "vdivps"};
  for (const Build& build : kBuilds) {
    for (const char* grad : {"adam_block<(optlease::DType)1>", "adam_block<(optlease::DType)2>",
                             "adam_block<(optlease::DType)3>"}) {
      expect_packed(build.object, grad, build.width, patterns);
    }
    expect_packed(build.object, "adam_block<(optlease::DType)1>", build.width,
                  {"vpmul(udq|lq)", "vpaddq"});  // FP32 gradients are summed on the way
  }
}

TEST(Vectorisation, AdamContractsNothingAndApproximatesNothing) {
  for (const Build& build : kBuilds) {
    for (const auto& [function, instructions] : functions_of(build.object)) {
      EXPECT_FALSE(has(instructions, "v?r(cp|sqrt)\\d*ps")) << function;
      if (function.find("grad_block") != std::string::npos) {
        EXPECT_FALSE(has(instructions, "vfn?m(add|sub)\\d+[ps]d")) << function;
      }
    }
  }
}

TEST(Vectorisation, ChecksumSumsConversionsAndNormArePacked) {
  for (const Build& build : kBuilds) {
    expect_packed(build.object, "checksum_block", build.width, {"vpsrlq", "vpaddq"});
    expect_packed(build.object, "add_block<(optlease::DType)1>", build.width, {"vaddps"});
    expect_packed(build.object, "store_block<(optlease::DType)2>", build.width, {"vpadd[dw]"});
    expect_packed(build.object, "load_block<(optlease::DType)3>", build.width, {"vmulps"});
    expect_packed(build.object, "grad_block", build.width, {"vmulpd", "vaddpd", "vcvtps2pd"});
  }
}

TEST(Vectorisation, ObjectsShowTheLinkerNothingButTheirTable) {
  for (const Build& build : kBuilds) {
    std::istringstream lines(
        output_of(std::string(OPTLEASE_NM) + " -C --defined-only -g '" + build.object + "'"));
    std::set<std::string> names;
    for (std::string line; std::getline(lines, line);) names.insert(line.substr(17));
    ASSERT_EQ(names.size(), 1u) << ::testing::PrintToString(names);
    EXPECT_EQ(names.begin()->find("T optlease::cpu_loops_v"), 0u) << *names.begin();
  }
}

}  // namespace
}  // namespace optlease
