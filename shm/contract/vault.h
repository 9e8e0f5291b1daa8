// The bytes of the vault protocol: a client puts or gets a shared buffer's fd under a key. One
// VaultMessage a request and one a reply over a connected Unix stream socket; the fd rides with the
// first byte of a put request or of a good get reply (SCM_RIGHTS). docs/SHM_LAYOUT.md has the byte
// table and a test compares them. Change anything here: bump kVaultVersion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/contract/status.h"

namespace optlease {

inline constexpr uint32_t kVaultMagic = 0x5641504f;  // "OPAV"
inline constexpr uint16_t kVaultVersion = 1;
inline constexpr uint32_t kVaultKeyBytes = 128;        // with the final zero
inline constexpr uint32_t kVaultPeersMax = 64;         // connected at once
inline constexpr uint32_t kVaultEntriesMax = 8192;     // fds held
inline constexpr uint64_t kVaultPeerTimeoutMs = 5000;  // for a whole request, from its connection
inline constexpr uint64_t kVaultBufferBytesMax = 1ull << 44;

// Frozen: append only.
enum class VaultOp : uint16_t {
  kPut = 1,
  kGet = 2,
  kPutReply = 65,
  kGetReply = 66,
};

struct VaultMessage {
  uint32_t magic;
  uint16_t version;
  uint16_t op;      // VaultOp
  uint64_t bytes;   // of the buffer: put request, good get reply; else 0
  uint16_t status;  // StatusCode; 0 in a request
  uint16_t reserved_zero;
  uint32_t reserved_zero_2;
  char key[kVaultKeyBytes];  // zero-terminated, zero-filled; a reply repeats its request's
};
static_assert(sizeof(VaultMessage) == 152 && std::is_trivially_copyable_v<VaultMessage> &&
                  offsetof(VaultMessage, bytes) == 8 && offsetof(VaultMessage, status) == 16 &&
                  offsetof(VaultMessage, key) == 24,
              "bump kVaultVersion");

// Null, or the broken rule in words. Called before send and after receive.
const char* why_invalid(const VaultMessage& message);

}  // namespace optlease
