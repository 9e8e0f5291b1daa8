// The keys of a job plan's JSON, once for both directions: each struct's list is walked by a writer
// and by a reader (job_plan_json.cc, its only user). An archive is called with key and member. The
// structured bindings name every member, in the struct's order: a struct that gains one does not
// compile here until its key is listed.
#pragma once

#include <concepts>
#include <type_traits>

#include "actors/runtime/job_plan.h"

namespace optlease::job_plan_fields {

// T, const or not: a writer walks const plans, a reader mutable ones.
template <class P, class T>
concept Is = std::same_as<std::remove_const_t<P>, T>;

template <class A>
void fields(A& a, Is<TensorSpec> auto& p) {
  auto& [name, shape, flat_offset, elements, global_shape, global_offset] = p;
  a("name", name);
  a("shape", shape);
  a("flat_offset", flat_offset);
  a("elements", elements);
  a("global_shape", global_shape);
  a("global_offset", global_offset);
}
template <class A>
void fields(A& a, Is<SpaceSpec> auto& p) {
  auto& [name, members, tensors, elements, param_dtype, grad_dtype, group, shard_elements,
         chunk_elements] = p;
  a("name", name);
  a("members", members);
  a("tensors", tensors);
  a("elements", elements);
  a("param_dtype", param_dtype);
  a("grad_dtype", grad_dtype);
  a("group", group);
  a("shard_elements", shard_elements);
  a("chunk_elements", chunk_elements);
}
template <class A>
void fields(A& a, Is<StateSplit> auto& p) {
  auto& [main, resident_millionths] = p;
  a("main", main);
  a("resident_millionths", resident_millionths);
}
template <class A>
void fields(A& a, Is<SegmentPlan> auto& p) {
  auto& [job_name, world_size, window_chunks, prefetch_windows, split, spaces] = p;
  a("job_name", job_name);
  a("world_size", world_size);
  a("window_chunks", window_chunks);
  a("prefetch_windows", prefetch_windows);
  a("split", split);
  a("spaces", spaces);
}
template <class A>
void fields(A& a, Is<TensorInit> auto& p) {
  auto& [kind, std_dev] = p;
  a("kind", kind);
  a("std_dev", std_dev);
}
template <class A>
void fields(A& a, Is<ModelPlan> auto& p) {
  auto& [source, seed, init] = p;
  a("source", source);
  a("seed", seed);
  a("init", init);
}
template <class A>
void fields(A& a, Is<GradientPlan> auto& p) {
  auto& [source, replay_path, synthetic_seed, synthetic_nonfinite_steps, average, max_norm,
         collective_timeout_ms, durable] = p;
  a("source", source);
  a("replay_path", replay_path);
  a("synthetic_seed", synthetic_seed);
  a("synthetic_nonfinite_steps", synthetic_nonfinite_steps);
  a("average", average);
  a("max_norm", max_norm);
  a("collective_timeout_ms", collective_timeout_ms);
  a("durable", durable);
}
template <class A>
void fields(A& a, Is<GroupParams> auto& p) {
  auto& [lr, beta1, beta2, eps, weight_decay, rule, reserved_zero] = p;
  a("lr", lr);
  a("beta1", beta1);
  a("beta2", beta2);
  a("eps", eps);
  a("weight_decay", weight_decay);
  a.template enumeration<Rule>("rule", rule);
}
template <class A>
void fields(A& a, Is<OptimizerPlan> auto& p) {
  auto& [lr, groups] = p;
  a("lr", lr);
  a("groups", groups);
}
template <class A>
void fields(A& a, Is<TrainerPlan> auto& p) {
  auto& [command, environment, attach_timeout_ms] = p;
  a("command", command);
  a("environment", environment);
  a("attach_timeout_ms", attach_timeout_ms);
}
template <class A>
void fields(A& a, Is<RestartPlan> auto& p) {
  auto& [intensity, period_ms, backoff_ms, backoff_ms_max, start_timeout_ms, heartbeat_timeout_ms,
         lease_ms, quarantine_grace_ms, stop_timeout_ms] = p;
  a("intensity", intensity);
  a("period_ms", period_ms);
  a("backoff_ms", backoff_ms);
  a("backoff_ms_max", backoff_ms_max);
  a("start_timeout_ms", start_timeout_ms);
  a("heartbeat_timeout_ms", heartbeat_timeout_ms);
  a("lease_ms", lease_ms);
  a("quarantine_grace_ms", quarantine_grace_ms);
  a("stop_timeout_ms", stop_timeout_ms);
}
template <class A>
void fields(A& a, Is<TelemetryPlan> auto& p) {
  auto& [interval_ms, step_log] = p;
  a("interval_ms", interval_ms);
  a("step_log", step_log);
}
template <class A>
void fields(A& a, Is<Rehearsal> auto& p) {
  auto& [role, rank, step, phase, at_rank] = p;
  a("role", role);
  a("rank", rank);
  a("step", step);
  a("phase", phase);
  a("at_rank", at_rank);
}
template <class A>
void fields(A& a, Is<NumaPlan> auto& p) {
  auto& [nodes, note] = p;
  a("nodes", nodes);
  a("note", note);
}
template <class A>
void fields(A& a, Is<JobPlan> auto& p) {
  auto& [segment, steps, device, keep_state, staging_buffers, in_flight_bytes, numa, model,
         gradients, optimizer, trainer, restart, telemetry, rehearsals] = p;
  a("segment", segment);
  a("steps", steps);
  a("device", device);
  a("keep_state", keep_state);
  a("staging_buffers", staging_buffers);
  a("in_flight_bytes", in_flight_bytes);
  a("numa", numa);
  a("model", model);
  a("gradients", gradients);
  a("optimizer", optimizer);
  a("trainer", trainer);
  a("restart", restart);
  a("telemetry", telemetry);
  a("rehearsals", rehearsals);
}

}  // namespace optlease::job_plan_fields
