// What the parser could not survive is refused, and nothing else is.
#include "launcher/toml_depth.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

std::string parts(size_t count) {
  std::string key = "a";
  for (size_t i = 1; i < count; ++i) key += ".a";
  return key;
}

TEST(TomlDepth, CountsThePartsOfAKey) {
  EXPECT_EQ(line_of_deep_key(parts(64) + " = 1"), 0u);
  EXPECT_EQ(line_of_deep_key("x = 1\n" + parts(65) + " = 1"), 2u);
  EXPECT_EQ(line_of_deep_key("[" + parts(65) + "]"), 1u);
}

TEST(TomlDepth, CountsTheTablesAroundAKey) {
  std::string value = "1";
  for (int i = 0; i < 10; ++i) value = "{" + parts(7) + " = " + value + "}";
  EXPECT_NE(line_of_deep_key("x = " + value), 0u);
  EXPECT_NE(line_of_deep_key("x = [1, {" + parts(70) + " = 1}]"), 0u);
  std::string wide = "x = [";
  for (int i = 0; i < 1000; ++i) wide += "1.5, {a.b = 2.5},\n";
  EXPECT_EQ(line_of_deep_key(wide + "]"), 0u) << "width is no depth";
}

TEST(TomlDepth, CountsThePartsOfTheHeaderAboveAKey) {
  EXPECT_EQ(line_of_deep_key("[" + parts(63) + "]\nb = 1"), 0u);
  EXPECT_EQ(line_of_deep_key("[" + parts(60) + "]\nb = 1\n" + parts(5) + " = 1"), 3u);
  EXPECT_EQ(line_of_deep_key("  [[" + parts(60) + "]] # an element\n" + parts(5) + " = 1"), 2u);
  EXPECT_EQ(line_of_deep_key("[" + parts(60) + "]\n[b]\n" + parts(5) + " = 1"), 0u)
      << "the last header counts, and no other";
  EXPECT_EQ(line_of_deep_key("[[" + parts(65) + "]]"), 1u);
}

TEST(TomlDepth, LeavesAMissingBracketToTheParser) {
  std::string numbers;
  for (int i = 0; i < 80; ++i) numbers += "x" + std::to_string(i) + " = 0.5\n";
  for (const char* unclosed : {"[job\n", "[[job]\n", "[job # no bracket ]\n", "[job.\"a\n",
                               "[\"\"\"a\n\"\"\"]\n", "x = [1.5\n", "x = {a.b = 1\n"}) {
    EXPECT_EQ(line_of_deep_key(unclosed + numbers), 0u) << unclosed;
  }
  EXPECT_EQ(line_of_deep_key("[" + parts(65) + "\n"), 1u) << "it is deep before it is unclosed";
}

TEST(TomlDepth, QuotesInCommentsAndStringsHideNothing) {
  const std::string deep = "\n" + parts(100) + " = 1\n";
  for (const char* before :
       {"# the machine's bandwidth", "# 5\" disk", "x = \"\"\"a \" b\"\"\"", "x = '''a ' b'''",
        "x = 'it'", "x = \"\\\"\"", "x = \"\"\"two quotes\"\"\"\"\""}) {
    EXPECT_EQ(line_of_deep_key(before + deep), 2u) << before;
  }
}

TEST(TomlDepth, DotsInCommentsAndStringsAreNoKeys) {
  const std::string dots(200, '.');
  for (const std::string& text :
       {"# " + dots, "x = 1 # don't " + dots, "x = \"" + dots + "\"", "x = '" + dots + "'",
        "# don't\nx = ['" + dots + "', '" + dots + "']", "x = \"\"\"say \"" + dots + "\" \"\"\"",
        "x = '''don't" + dots + "'''", "x = '''don't'''\ny = '" + dots + "'"}) {
    EXPECT_EQ(line_of_deep_key(text + "\ny = 1\n"), 0u) << text;
  }
}

}  // namespace
}  // namespace optlease
