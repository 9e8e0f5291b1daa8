// NCCL as it is found at run time: which versions will do, and the real library where there is one.
#include "actors/gpu_actor/nccl_library.h"

#include <gtest/gtest.h>

namespace optlease {
namespace {

TEST(NcclLibrary, TakesLaterVersionsOfTheSameMajorAndNoOthers) {
  constexpr int kCompiled = 22803;
  for (const int version : {21900, 21903, 22005, 22803, 22999}) {
    EXPECT_TRUE(check_nccl_version(kCompiled, version).is_ok()) << version;
  }
  for (const int version : {0, 2804, 21899, 30000, 12000}) {
    EXPECT_EQ(check_nccl_version(kCompiled, version).code(), StatusCode::kUnsupported) << version;
  }
  const std::string words = check_nccl_version(kCompiled, 21805).message();
  EXPECT_NE(words.find("NCCL 2.18.5 was found"), std::string::npos) << words;
  EXPECT_NE(words.find("headers of 2.28.3"), std::string::npos) << words;
}

TEST(NcclLibrary, IsLoadedWhereItIsInstalledAndElseMissedInWords) {
  const Result<const NcclLibrary*> loaded = load_nccl();
  if (!loaded.is_ok()) {
    EXPECT_EQ(loaded.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(loaded.status().message().find("LD_LIBRARY_PATH"), std::string::npos);
    GTEST_SKIP() << loaded.status().text();
  }
  int version = 0;
  EXPECT_EQ(loaded.value()->get_version(&version), ncclSuccess);
  EXPECT_GE(version, 20000) << version;
  EXPECT_EQ(load_nccl().value(), loaded.value()) << "it is loaded once";
  const Status invalid =
      nccl_status(*loaded.value(), ncclInvalidArgument, "ncclSend to nobody", nullptr);
  EXPECT_EQ(invalid.code(), StatusCode::kIo);
  EXPECT_EQ(invalid.message().rfind("ncclSend to nobody: ", 0), 0u) << invalid.text();
  EXPECT_EQ(nccl_status(*loaded.value(), ncclRemoteError, "a transfer", nullptr).code(),
            StatusCode::kPeerLost);
  EXPECT_TRUE(nccl_status(*loaded.value(), ncclInProgress, "a transfer", nullptr).is_ok());
}

}  // namespace
}  // namespace optlease
