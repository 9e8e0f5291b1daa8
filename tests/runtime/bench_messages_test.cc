// The step log's lines and the datagrams of the floor processes.
#include <gtest/gtest.h>

#include "actors/runtime/floor_messages.h"
#include "actors/runtime/step_figures.h"

namespace optlease {
namespace {

StepFigures figures_of(Step step) {
  StepFigures f;
  f.step = step;
  f.incarnation = 2;
  f.stream_seconds = 0.25;
  f.gather_exposed_seconds = 0.125;
  f.stream_ended_us = 1ull << 60;
  f.bytes_in = 3;
  f.device_bytes_peak = 9;
  f.staging_bytes = 11;
  return f;
}

TEST(StepFigures, ComeBackAsTheyWereWritten) {
  const auto read = step_figures_of(to_json(figures_of(4)) + "\n", 10);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(to_json(read[0]), to_json(figures_of(4)));
}

TEST(StepFigures, TheLastLineAboutAStepCountsAndTornOnesDoNot) {
  StepFigures again = figures_of(1);
  again.bytes_in = 77;
  const std::string whole = to_json(figures_of(1)) + "\n" + to_json(figures_of(2)) + "\n" +
                            to_json(again) + "\n[]\n{\"step\": 3}\n";
  const auto read = step_figures_of(whole + to_json(figures_of(3)).substr(0, 40), 10);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].bytes_in, 77u);
  EXPECT_EQ(read[1].step, 2);
}

TEST(StepFigures, OnlyTheLastStepsAreTaken) {
  std::string text;
  for (Step step = 1; step <= 20; ++step) text += to_json(figures_of(step)) + "\n";
  const auto read = step_figures_of(text, 3);
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read.front().step, 18);
}

TEST(FloorMessages, ComeBackAsTheyWereSent) {
  const FloorSetup setup{"cuda", 3, 5000, 8192, 7};
  const auto again = floor_setup_from(to_json(setup));
  ASSERT_TRUE(again.is_ok()) << again.status().text();
  EXPECT_EQ(to_json(again.value()), to_json(setup));
  for (const auto direction : {FloorDirection::kIn, FloorDirection::kOut, FloorDirection::kBoth}) {
    const auto order = floor_order_from(to_json(FloorOrder{direction, 250}));
    ASSERT_TRUE(order.is_ok());
    EXPECT_EQ(order.value().direction, direction);
    EXPECT_EQ(order.value().measure_ms, 250u);
  }
  FloorReply reply;
  reply.failure = "no \xff luck";  // not UTF-8: replaced, never thrown on
  reply.rounds = 5;
  reply.round_seconds = 0.5;
  const auto heard = floor_reply_from(to_json(reply));
  ASSERT_TRUE(heard.is_ok());
  EXPECT_EQ(heard.value().rounds, 5u);
  EXPECT_EQ(heard.value().round_seconds, 0.5);
}

TEST(FloorMessages, WhatBreaksARuleIsRefusedInWords) {
  for (const FloorSetup& wrong :
       {FloorSetup{"tpu", 0, 5000, 8192, 7}, FloorSetup{"cpu", 0, 0, 8192, 7},
        FloorSetup{"cpu", 0, 5000, 8192, 0}, FloorSetup{"cpu", 0, 5000, 8000, 7},
        FloorSetup{"cpu", 0, 5000, 4096, 7}, FloorSetup{"cpu", 0, 5000, 1ull << 62, 1u << 20}}) {
    EXPECT_NE(why_invalid(wrong), "");
    EXPECT_EQ(floor_setup_from(to_json(wrong)).status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(floor_order_from(to_json(FloorOrder{FloorDirection::kIn, 1ull << 40})).is_ok());
  for (const char* bad :
       {"", "[]", "{", "{\"direction\": \"up\", \"measure_ms\": 1}",
        "{\"direction\": \"in\", \"measure_ms\": -1}", "{\"direction\": \"in\"}"}) {
    EXPECT_FALSE(floor_order_from(bad).is_ok()) << bad;
  }
}

}  // namespace
}  // namespace optlease
