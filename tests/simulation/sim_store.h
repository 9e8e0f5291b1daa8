// A life of the host store: the real StoreService over the node's segments. This is HostStore's
// part (actors/host_store/host_store.cc): it takes frames, settles after a batch of them or when
// time brings something, and sends what is outgoing.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "actors/host_store/store_service.h"
#include "tests/simulation/sim_ledger.h"
#include "tests/simulation/sim_process.h"

namespace optlease {

class SimStore final : public SimProcess {
 public:
  struct Setup {
    bool create = false;
    bool all_older_reaped = false;
    std::function<void()> listens;  // it has bound its socket and can be reached
    std::function<void(const std::string& peer, std::string frame)> send;
    std::function<uint64_t(const std::string& peer)> process_of;  // 0: the launcher
  };
  SimStore(SimContext& context, SimLedger& ledger, uint64_t number, uint64_t life, Setup setup);

  void begin() override;
  bool terminate() override;
  void on_frame(const std::string& peer, std::string frame);
  // At the next visit of that kill point it has no memory left, and dies.
  void arm(const char* kill_point) { kill_point_ = kill_point; }

 private:
  void on_death() override;
  void handle(const std::string& peer, const std::string& frame);
  void settle();
  void settle_soon(uint64_t delay_us);
  void hear_outgoing();
  // False: it has died within.
  bool guarded(const std::function<void()>& what);

  SimLedger& ledger_;
  Setup setup_;
  std::optional<StoreService> service_;
  bool settles_soon_ = false;
  uint64_t timer_ = 0;  // of which only the last one counts
  size_t heard_ = 0;    // of the outgoing messages
  const char* kill_point_ = nullptr;
};

}  // namespace optlease
