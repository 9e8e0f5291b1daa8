#include "kernels/cpu_isa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/cpu_loops.h"

namespace optlease {
namespace {

// Restores the environment and the choice that other tests run with.
class CpuIsaChoice : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* wish = std::getenv("OPTLEASE_ISA");
    had_wish_ = wish != nullptr;
    if (had_wish_) wish_ = wish;
  }
  void TearDown() override {
    had_wish_ ? setenv("OPTLEASE_ISA", wish_.c_str(), 1) : unsetenv("OPTLEASE_ISA");
    EXPECT_TRUE(select_cpu_isa().is_ok());
  }
  static Status wish_for(const char* isa) {
    setenv("OPTLEASE_ISA", isa, 1);
    return select_cpu_isa();
  }

 private:
  bool had_wish_ = false;
  std::string wish_;
};

TEST_F(CpuIsaChoice, TakesTheBestThatIsSupported) {
  unsetenv("OPTLEASE_ISA");
  ASSERT_TRUE(select_cpu_isa().is_ok());
  const CpuIsa best = is_supported(CpuIsa::kV4)   ? CpuIsa::kV4
                      : is_supported(CpuIsa::kV3) ? CpuIsa::kV3
                                                  : CpuIsa::kGeneric;
  EXPECT_EQ(cpu_isa(), best);
  EXPECT_EQ(&cpu_loops(), cpu_loops_of(best));
}

TEST_F(CpuIsaChoice, ObeysASupportedWishAndRefusesAnother) {
  for (CpuIsa isa : {CpuIsa::kGeneric, CpuIsa::kV3, CpuIsa::kV4}) {
    ASSERT_TRUE(wish_for("generic").is_ok());
    const Status status = wish_for(name_of(isa));
    if (is_supported(isa)) {
      EXPECT_TRUE(status.is_ok()) << status.text();
      EXPECT_EQ(cpu_isa(), isa);
      continue;
    }
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find(name_of(isa)), std::string::npos);
    EXPECT_EQ(cpu_isa(), CpuIsa::kGeneric) << "a refused wish changes nothing";
    EXPECT_EQ(cpu_loops_of(isa), nullptr);
  }
}

TEST_F(CpuIsaChoice, RefusesAnUnknownName) {
  const Status status = wish_for("avx9");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("avx9"), std::string::npos);
}

}  // namespace
}  // namespace optlease
