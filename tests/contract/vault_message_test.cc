#include <gtest/gtest.h>

#include <cstring>

#include "shm/contract/vault.h"

namespace optlease::test {
namespace {

VaultMessage good(VaultOp op) {
  VaultMessage message{};
  message.magic = kVaultMagic;
  message.version = kVaultVersion;
  message.op = static_cast<uint16_t>(op);
  std::strcpy(message.key, "param.0.dense");
  return message;
}

TEST(VaultMessage, AcceptsEveryOperation) {
  for (const VaultOp op : {VaultOp::kPut, VaultOp::kGet, VaultOp::kPutReply, VaultOp::kGetReply}) {
    EXPECT_EQ(why_invalid(good(op)), nullptr);
  }
}

TEST(VaultMessage, NamesEveryBrokenRule) {
  const auto broken = [](VaultOp op, auto change) {
    VaultMessage message = good(op);
    change(message);
    return why_invalid(message) != nullptr;
  };
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.magic = 0; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.version = 2; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.op = 3; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.op = 0; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.reserved_zero = 1; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.reserved_zero_2 = 1; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.bytes = 1; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.status = 1; }));
  EXPECT_TRUE(broken(VaultOp::kPut, [](auto& m) { m.status = 1; }));
  EXPECT_TRUE(broken(VaultOp::kPut, [](auto& m) { m.bytes = kVaultBufferBytesMax + 1; }));
  EXPECT_TRUE(broken(VaultOp::kPutReply, [](auto& m) { m.bytes = 1; }));
  EXPECT_TRUE(broken(VaultOp::kPutReply, [](auto& m) { m.status = 99; }));
  EXPECT_TRUE(broken(VaultOp::kGetReply, [](auto& m) {
    m.status = 3;
    m.bytes = 1;
  }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.key[0] = 0; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.key[127] = 'x'; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { m.key[3] = '\n'; }));
  EXPECT_TRUE(broken(VaultOp::kGet, [](auto& m) { std::memset(m.key, 'k', sizeof m.key); }));
}

}  // namespace
}  // namespace optlease::test
