// From a configuration to the job that every process reads (JobPlan) and to the list of processes
// that the launcher starts. Pure: no file, clock or process; `optlease plan` prints exactly what
// `optlease run` executes. It does not look at the machine: memory_contract.h does.
#pragma once

#include <string>
#include <vector>

#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "launcher/config_file.h"
#include "shm/contract/status.h"

namespace optlease {

// The job of a configuration that load_config() accepted. `notes` (may be null) gets one sentence
// for each thing that works but that its author may not have meant. On failure `key` (may be null)
// gets the key that asks for too much, as ConfigError::key.
Result<JobPlan> make_plan(const Config& config, std::vector<std::string>* notes = nullptr,
                          std::string* key = nullptr);

// The places of the arenas (numa_nodes.h) on this machine, for a plan of that configuration, and
// what there is to say about them.
Status place_arenas(const Config& config, JobPlan* plan, std::vector<std::string>* notes);

// One process that the launcher starts, without what only a life of it knows (incarnation, lifeline
// and rehearsals): the supervisor appends those to argv.
struct ProcessPlan {
  Role role = Role::kGpuActor;
  uint32_t rank = 0;                     // unused for the store
  std::vector<std::string> argv;         // argv[0] is the program's path
  std::vector<std::string> environment;  // "NAME=value", added to the launcher's own
  std::string log_file;
};

// Host store, then the actors, then the trainers. `program_directory` is where the launcher itself
// lies: optlease-* programs are taken from there.
std::vector<ProcessPlan> make_process_plan(const JobPlan& plan, const RunDirectory& run,
                                           const std::string& program_directory);

// "{rank}" and "{job}" replaced.
std::string expand(std::string text, const std::string& job_name, uint32_t rank);

// What `optlease plan` prints: geometry a space and a rank, groups, processes, notes.
std::string plan_text(const JobPlan& plan, const std::vector<ProcessPlan>& processes,
                      const std::vector<std::string>& notes);
std::string plan_json(const JobPlan& plan, const std::vector<ProcessPlan>& processes,
                      const std::vector<std::string>& notes);

}  // namespace optlease
