// The pages' byte tables against the compiler: pages drift otherwise.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/contract/layout_fields.h"

namespace optlease::test {
namespace {

// Every table under a heading "### Name (N bytes)" of a page, from the line `after` on.
std::vector<StructPlace> tables_of(const std::string& page, const std::string& after) {
  std::ifstream in(std::string(OPTLEASE_SOURCE_DIR) + "/docs/" + page);
  EXPECT_TRUE(in.good()) << page;
  const std::regex heading(R"(### (\w+) \((\d+) bytes\))");
  const std::regex row(R"(\| `(\w+)` \| (\d+) \| (\d+) \| .* \|)");
  std::vector<StructPlace> tables;
  std::string line;
  bool reached = false;
  while (std::getline(in, line)) {
    reached = reached || line == after;
    std::smatch match;
    if (!reached) continue;
    if (std::regex_match(line, match, heading)) {
      tables.push_back({match[1], std::stoul(match[2]), {}});
    } else if (std::regex_match(line, match, row)) {
      EXPECT_FALSE(tables.empty()) << page << ": " << line;
      if (tables.empty()) continue;
      tables.back().fields.push_back({match[1], std::stoul(match[2]), std::stoul(match[3])});
    }
  }
  return tables;
}

void expect_equal(const std::vector<StructPlace>& page, const std::vector<StructPlace>& code) {
  ASSERT_EQ(page.size(), code.size());
  for (size_t s = 0; s < code.size(); ++s) {
    SCOPED_TRACE(code[s].name);
    EXPECT_EQ(page[s].name, code[s].name);
    EXPECT_EQ(page[s].size, code[s].size);
    ASSERT_EQ(page[s].fields.size(), code[s].fields.size());
    for (size_t f = 0; f < code[s].fields.size(); ++f) {
      EXPECT_EQ(page[s].fields[f].name, code[s].fields[f].name);
      EXPECT_EQ(page[s].fields[f].offset, code[s].fields[f].offset) << code[s].fields[f].name;
      EXPECT_EQ(page[s].fields[f].size, code[s].fields[f].size) << code[s].fields[f].name;
    }
  }
}

void expect_no_gaps(const std::vector<StructPlace>& structs) {
  for (const StructPlace& place : structs) {
    size_t at = 0;
    for (const FieldPlace& field : place.fields) {
      EXPECT_EQ(field.offset, at) << place.name << "." << field.name << " follows padding";
      at = field.offset + field.size;
    }
    EXPECT_EQ(at, place.size) << place.name << " has a field that is not listed, or padding";
  }
}

// Names of the structs that a header declares.
std::vector<std::string> structs_declared_in(const std::string& header) {
  std::ifstream in(std::string(OPTLEASE_SOURCE_DIR) + "/shm/contract/" + header);
  EXPECT_TRUE(in.good()) << header;
  const std::regex declaration(R"(^struct (\w+) \{.*)");
  std::vector<std::string> names;
  for (std::string line; std::getline(in, line);) {
    std::smatch match;
    if (std::regex_match(line, match, declaration)) names.push_back(match[1]);
  }
  return names;
}

std::vector<std::string> names_of(const std::vector<StructPlace>& structs) {
  std::vector<std::string> names;
  for (const StructPlace& place : structs) names.push_back(place.name);
  return names;
}

TEST(ByteTables, OfSharedMemoryAreWhatTheCompilerSays) {
  expect_equal(tables_of("SHM_LAYOUT.md", "## Structs"), structs_in_memory());
}

TEST(ByteTables, OfMessagesAreWhatTheCompilerSays) {
  expect_equal(tables_of("PROTOCOL.md", "## Byte tables"), structs_in_messages());
}

TEST(ByteTables, HaveNoGapsAndLeaveNoFieldOut) {
  expect_no_gaps(structs_in_memory());
  expect_no_gaps(structs_in_messages());
}

TEST(ByteTables, LeaveNoStructOut) {
  std::vector<std::string> memory;
  for (const char* header : {"optimizer_params.h", "segment_layout.h", "vault.h"}) {
    for (const std::string& name : structs_declared_in(header)) memory.push_back(name);
  }
  EXPECT_EQ(memory, names_of(structs_in_memory()));
  EXPECT_EQ(structs_declared_in("messages.h"), names_of(structs_in_messages()));
}

}  // namespace
}  // namespace optlease::test
