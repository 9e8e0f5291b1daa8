// Whether the recorded gradients that a run needs first are there and fit the job. Used by
// `optlease plan`, `run` and `bench` before anything starts. It reads headers, never values, and
// only of one step: those of later ones may still be on their way.
#pragma once

#include "launcher/config_file.h"

namespace optlease {

// InvalidArgument with place, key, file and tensor where what the ranks replay in step `next` is
// not there, is no safetensors file, or lacks a parameter, its shape or a dtype that can be
// converted. Ok where nothing is replayed, or no step is left.
Status check_replay_files(const LoadedConfig& loaded, Step next);

}  // namespace optlease
