#include "actors/runtime/json_fields.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace optlease {
namespace {

enum class Colour : uint32_t { kRed = 0, kBlue = 1 };
const char* name_of(Colour colour) {
  switch (colour) {
    case Colour::kRed:
      return "red";
    case Colour::kBlue:
      return "blue";
  }
  return "?";
}

struct All {
  std::string text;
  double number = 0;
  std::optional<double> maybe;
  uint64_t large = 0;
  int64_t small = 0;
  uint32_t narrow = 0;
  Colour colour = Colour::kRed;
};

template <class Archive, class T>
void fields(Archive& a, T& all) {
  a("text", all.text);
  a("number", all.number);
  a("maybe", all.maybe);
  a("large", all.large);
  a("small", all.small);
  a("narrow", all.narrow);
  a("colour", all.colour);
}

std::string written(const All& all) {
  JsonFieldWriter writer;
  fields(writer, all);
  return writer.text();
}

std::string error_of(const std::string& text, All* all,
                     JsonFieldReader::Nulls nulls = JsonFieldReader::Nulls::kRefused) {
  JsonFieldReader reader(text, nulls);
  fields(reader, *all);
  return reader.error();
}

const char kGood[] = R"({"text":"t","number":0.1,"maybe":2.5,"large":18446744073709551615,)"
                     R"("small":-9223372036854775808,"narrow":4294967295,"colour":"blue"})";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kGood;
  text.replace(text.find(from), from.size(), to);
  return text;
}

TEST(JsonFields, EveryTypeComesBackAtItsLimits) {
  All all;
  ASSERT_EQ(error_of(kGood, &all), "");
  EXPECT_EQ(all.text, "t");
  EXPECT_EQ(all.number, 0.1);
  EXPECT_EQ(all.maybe, 2.5);
  EXPECT_EQ(all.large, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(all.small, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(all.narrow, std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(all.colour, Colour::kBlue);
  EXPECT_EQ(written(all), kGood);
}

TEST(JsonFields, KeysAreInTheOrderOfWriting) {
  JsonFieldWriter writer;
  const All all;
  fields(writer, all);
  EXPECT_EQ(writer.keys(), (std::vector<std::string>{"text", "number", "maybe", "large", "small",
                                                     "narrow", "colour"}));
}

TEST(JsonFields, TheFirstBrokenFieldIsNamed) {
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"", "it is no JSON object"},
           {"[1]", "it is no JSON object"},
           {"{}", "'text' is missing"},
           {with("\"t\"", "1"), "'text'"},
           {with("0.1", "\"0.1\""), "'number'"},
           {with("0.1", "null"), "'number'"},
           {with("2.5", "true"), "'maybe'"},
           {with("18446744073709551615", "-1"), "'large'"},
           {with("18446744073709551615", "18446744073709551616"), "'large'"},
           {with("-9223372036854775808", "9223372036854775808"), "'small'"},
           {with("-9223372036854775808", "1.5"), "'small'"},
           {with("4294967295", "4294967296"), "'narrow'"},
           {with("blue", "green"), "'colour'"},
           {with("blue", "?"), "'colour'"},
           {with("\"blue\"", "1"), "'colour'"}}) {
    All all;
    EXPECT_EQ(error_of(text, &all).find(error), 0u) << text << ": " << error_of(text, &all);
  }
}

TEST(JsonFields, NumbersThatJsonHasNotAreNull) {
  All all;
  all.number = HUGE_VAL;
  const std::string text = written(all);
  EXPECT_NE(text.find(R"("number":null,"maybe":null)"), std::string::npos) << text;
  All read;
  read.maybe = 1.0;
  EXPECT_EQ(error_of(text, &read, JsonFieldReader::Nulls::kUnknown), "");
  EXPECT_TRUE(std::isnan(read.number));
  EXPECT_FALSE(read.maybe.has_value());
}

TEST(JsonFields, BytesThatAreNoTextAreReplaced) {
  All all;
  all.text = "\xff\n\"";
  All read;
  EXPECT_EQ(error_of(written(all), &read), "");
  EXPECT_EQ(written(all).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace optlease
