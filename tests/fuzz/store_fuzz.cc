// A host store over real segments, and what actors, the launcher, tools and strangers say to it: a
// sequence of messages, honest, nearly so, or of any bytes, with time that passes and kills of the
// store between them.
//
// It may assume nothing of the frames. It asserts after each of them: the slots are in one place
// each and the leases hold (StoreService::check_invariants); versions and the committed step never
// go back; the segment is one that a store killed at this moment is restarted from; everything that
// the store says is a frame of the protocol; and that it goes on, whatever it was told.
#include "tests/fuzz/store_world.h"

namespace {

constexpr int kOperationsMax = 64;

}  // namespace

std::vector<std::string> fuzz_seeds() { return optlease::fuzz::store_seeds(); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease::fuzz;
  Input input(data, size);
  StoreWorld world(input.byte());
  for (int i = 0; i < kOperationsMax && !input.empty() && !world.finished(); ++i) {
    world.step(&input);
  }
  world.restart_store();
  return 0;
}
