#include "launcher/numa_nodes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;
using Nodes = std::vector<int64_t>;

// A machine in a directory: /sys and /proc as far as they matter here.
class NumaNodes : public ::testing::Test {
 protected:
  NumaNodes() { online("0-1"); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root() + path).parent_path());
    std::ofstream(root() + path) << text << "\n";
  }
  void online(const std::string& list) { write("/sys/devices/system/node/online", list); }
  void gpu(const std::string& address, const std::string& node, const std::string& uuid) {
    write("/sys/bus/pci/devices/" + address + "/numa_node", node);
    write("/proc/driver/nvidia/gpus/" + address + "/information",
          "Model: \t\t NVIDIA H200\nGPU UUID: \t " + uuid + "\nBus Type: \t PCIe");
  }
  void four_gpus() {
    gpu("0000:cb:00.0", "1", "GPU-dddd");
    gpu("0000:18:00.0", "0", "GPU-aaaa");
    gpu("0000:9a:00.0", "1", "GPU-cccc");
    gpu("0000:2a:00.0", "0", "GPU-bbbb");
  }
  NumaPlan choose(uint32_t world_size, std::optional<std::string> visible = {}) {
    auto plan = choose_numa({.automatic = true,
                             .named = {},
                             .world_size = world_size,
                             .device = "cuda",
                             .visible_devices = std::move(visible)},
                            root());
    EXPECT_TRUE(plan.is_ok()) << plan.status().text();
    return plan.is_ok() ? plan.value() : NumaPlan{};
  }
  std::string root() const { return directory_.path(); }

  testing_support::TempDirectory directory_;
};

TEST_F(NumaNodes, EachRankGetsTheNodeOfItsGpuInTheOrderOfTheAddresses) {
  four_gpus();
  EXPECT_EQ(choose(4).nodes, (Nodes{0, 0, 1, 1}));
  EXPECT_EQ(choose(4).note, "");
  EXPECT_EQ(choose(6).nodes, (Nodes{0, 0, 1, 1, 0, 0})) << "rank modulo GPUs, as actors do";
}

TEST_F(NumaNodes, VisibleDevicesChooseByNumberOrUuidUntilTheFirstUnknownOne) {
  four_gpus();
  EXPECT_EQ(choose(2, "3,0").nodes, (Nodes{1, 0}));
  EXPECT_EQ(choose(2, "GPU-cc,GPU-aaaa").nodes, (Nodes{1, 0}));
  EXPECT_EQ(choose(2, "2,9,0").nodes, (Nodes{1, 1}));
  for (const char* none : {"", "9", "GPU-eeee", "MIG-4711"}) {
    const NumaPlan plan = choose(2, none);
    EXPECT_EQ(plan.nodes, (Nodes{-1, -1})) << none;
    EXPECT_NE(plan.note.find("CUDA_VISIBLE_DEVICES"), std::string::npos) << plan.note;
  }
}

TEST_F(NumaNodes, OneNodeNeedsNoPlaceAndSaysSo) {
  online("0");
  four_gpus();
  const NumaPlan plan = choose(4);
  EXPECT_TRUE(plan.nodes.empty());
  EXPECT_NE(plan.note.find("one NUMA node (0)"), std::string::npos) << plan.note;
}

TEST_F(NumaNodes, WhatTheKernelDoesNotTellIsSaidAndPlacesNothing) {
  gpu("0000:18:00.0", "-1", "GPU-a");
  gpu("0000:2a:00.0", "1", "GPU-b");
  gpu("0000:9a:00.0", "7", "GPU-c");
  gpu("0000:cb:00.0", "0", "GPU-d");
  fs::remove(root() + "/sys/bus/pci/devices/0000:cb:00.0/numa_node");
  const NumaPlan plan = choose(4);
  EXPECT_EQ(plan.nodes, (Nodes{-1, 1, -1, -1}));
  for (const char* word : {"rank 0", "says \"-1\"", "rank 2", "7, and that node is not online",
                           "rank 3", "is not there"}) {
    EXPECT_NE(plan.note.find(word), std::string::npos) << word << ": " << plan.note;
  }
  EXPECT_EQ(plan.note.find("rank 1 "), std::string::npos) << plan.note;
}

TEST_F(NumaNodes, NoDriverAndNoListOfNodesPlaceNothing) {
  EXPECT_EQ(choose(1).nodes, Nodes{-1});
  EXPECT_NE(choose(1).note.find("names no GPU"), std::string::npos);
  four_gpus();
  online("garbage");
  EXPECT_EQ(choose(2).nodes, (Nodes{-1, -1}));
  EXPECT_NE(choose(2).note.find("garbage"), std::string::npos);
  fs::remove(root() + "/sys/devices/system/node/online");
  EXPECT_NE(choose(2).note.find("is not there"), std::string::npos);
}

TEST_F(NumaNodes, NamedNodesAreTakenWhereTheyAreOnlineAlsoOnOneNode) {
  NumaWish wish{.automatic = false,
                .named = {1, -1, 0},
                .world_size = 3,
                .device = "cpu",
                .visible_devices = {}};
  EXPECT_EQ(choose_numa(wish, root()).value().nodes, (Nodes{1, -1, 0}));
  online("0");
  const auto refused = choose_numa(wish, root());
  ASSERT_FALSE(refused.is_ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("node 1 for rank 0"), std::string::npos);
  wish.named = {0, 0, 0};
  EXPECT_EQ(choose_numa(wish, root()).value().nodes, (Nodes{0, 0, 0}));
  wish.named.clear();  // "off"
  EXPECT_TRUE(choose_numa(wish, root()).value().nodes.empty());
}

TEST_F(NumaNodes, TheCpuDeviceHasNoGpuToBeNearTo) {
  four_gpus();
  const auto plan = choose_numa(
      {.automatic = true, .named = {}, .world_size = 2, .device = "cpu", .visible_devices = {}},
      root());
  EXPECT_TRUE(plan.value().nodes.empty());
}

TEST(NodeList, ReadsWhatTheKernelWritesAndNothingElse) {
  using List = std::vector<uint32_t>;
  EXPECT_EQ(parse_node_list("0").value(), List{0});
  EXPECT_EQ(parse_node_list("0-3,8").value(), (List{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_node_list("1,3-3").value(), (List{1, 3}));
  for (const char* text : {"", ",", "0,", "a", "3-1", "0-", "-1", "0 1", "2,1", "0-4294967295"}) {
    EXPECT_FALSE(parse_node_list(text).is_ok()) << text;
  }
}

TEST(VisibleGpuCount, IsTheListsUpToItsFirstEntryThatNamesNone) {
  EXPECT_EQ(visible_gpu_count({}, 4), 4u) << "no list: all";
  EXPECT_EQ(visible_gpu_count("0", 4), 1u);
  EXPECT_EQ(visible_gpu_count("3,1", 4), 2u);
  EXPECT_EQ(visible_gpu_count("0,4,1", 4), 1u) << "there is no fifth";
  EXPECT_EQ(visible_gpu_count("", 4), 0u);
  EXPECT_EQ(visible_gpu_count("-1", 4), 0u);
  EXPECT_EQ(visible_gpu_count("none", 4), 0u);
  EXPECT_EQ(visible_gpu_count("GPU-8932f937,MIG-5c89852c,1", 4), 3u);
  EXPECT_EQ(visible_gpu_count("0,1", UINT64_MAX), 2u) << "a machine that does not tell";
}

}  // namespace
}  // namespace optlease
