// Everything that can lie under a job's name, and what each command does with it: the tables of
// docs/OPERATING.md, "Kept states", as a test. What is refused or left is compared byte by byte.
#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "shm/found_state.h"
#include "shm/leftovers.h"
#include "shm/segment_removal.h"
#include "tests/launcher/claim_fixture.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

enum class Arenas { kValid, kDamaged, kUnwritten, kMissing, kOtherVersion, kOtherMode };
constexpr std::array kArenas = {Arenas::kValid,   Arenas::kDamaged,      Arenas::kUnwritten,
                                Arenas::kMissing, Arenas::kOtherVersion, Arenas::kOtherMode};

enum class Control {
  kMissing,
  kEmpty,         // no bytes: made, its space not yet taken
  kUnwritten,     // its header was never written
  kCreating,      // written, never ready
  kRemoving,      // its removal was begun
  kNoStep,        // ready, its initial state never complete
  kValid,         // step 7
  kBadChecksum,   // one bit of the header
  kStateFlipped,  // one bit of the state word: it says that it was never ready
  kOtherVersion,
  kOtherOwner,
  kOtherMode,
  kSymlink,
};

// What is found: the capital letters of the table.
constexpr char kNothing = '-', kWhole = 'W', kEarly = 'E', kRemains = 'R', kDamaged = 'D',
               kForeign = 'F';

struct Row {
  Control control;
  const char* name;
  const char* found;  // by kArenas
};
constexpr Row kRows[] = {
    {Control::kMissing, "missing", "DDR-FF"},
    {Control::kEmpty, "without bytes", "DDRRFF"},
    {Control::kUnwritten, "header never written", "DDRRFF"},
    {Control::kCreating, "creating", "RRRRFF"},
    {Control::kRemoving, "removal begun", "RRRRFF"},
    {Control::kNoStep, "ready, no step", "ERRRRF"},
    {Control::kValid, "valid", "WDDDDF"},
    {Control::kBadChecksum, "bad checksum", "DDDDFF"},
    {Control::kStateFlipped, "flipped state word", "DDDDFF"},
    {Control::kOtherVersion, "other version", "FFFFFF"},
    {Control::kOtherOwner, "other owner", "FFFFFF"},
    {Control::kOtherMode, "other mode", "FFFFFF"},
    {Control::kSymlink, "symlink", "FFFFFF"},
};

enum class Outcome { kRemoved, kLeft, kNone };

struct Verdict {
  char found;
  ExitCode run, resume, fresh;  // kOk: not refused
  Outcome clean, clean_named;
};
constexpr ExitCode kOk = ExitCode::kOk;
constexpr ExitCode k10 = ExitCode::kCorruptState;
constexpr Verdict kVerdicts[] = {
    {kNothing, kOk, ExitCode::kStateAbsent, kOk, Outcome::kNone, Outcome::kNone},
    {kWhole, ExitCode::kStateExists, kOk, kOk, Outcome::kRemoved, Outcome::kRemoved},
    {kEarly, kOk, kOk, kOk, Outcome::kRemoved, Outcome::kRemoved},
    {kRemains, kOk, ExitCode::kStateAbsent, kOk, Outcome::kRemoved, Outcome::kRemoved},
    {kDamaged, k10, k10, kOk, Outcome::kLeft, Outcome::kRemoved},
    {kForeign, k10, k10, k10, Outcome::kLeft, Outcome::kLeft},
};

const Verdict& verdict_of(char found) {
  for (const Verdict& verdict : kVerdicts) {
    if (verdict.found == found) return verdict;
  }
  OPTLEASE_CHECK(false, "no verdict '%c'", found);
  return kVerdicts[0];
}

void write_at(const std::string& path, uint64_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file << bytes;
  ASSERT_TRUE(file.flush().good()) << path;
}

void flip(const std::string& path, uint64_t at) {
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ 1);
  write_at(path, at, std::string(1, byte));
}

template <class Value>
std::string bytes_of_value(Value value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

class ClaimTable : public JobClaimTest {
 protected:
  std::string path_of(const std::string& suffix) const { return Segment::path_of(stem() + suffix); }
  std::string stem() const {
    const std::string control = run_->control_segment();
    return control.substr(0, control.size() - std::string(".ctl").size());
  }
  void set_control(Control control);
  void set_arenas(Arenas arenas);
  void expect_after(const std::string& command, char found);
  void expect_claim(StartMode mode, ExitCode wanted, bool starts_anew);
  void expect_clean(const CleanOptions& options, Outcome wanted);
  void clear() {
    for (const std::string& name : segments_of_job(*run_)) Segment::unlink(name);
    fs::remove_all(run_->path());
  }
  // Kind, owner, mode and bytes of everything under the job's names.
  std::map<std::string, std::string> snapshot() const {
    std::map<std::string, std::string> all;
    for (const std::string& name : segments_of_job(*run_)) {
      const std::string path = Segment::path_of(name);
      struct stat info {};
      EXPECT_EQ(lstat(path.c_str(), &info), 0);
      std::ifstream file(path, std::ios::binary);
      std::string bytes(static_cast<size_t>(file ? fs::file_size(path) : 0), '\0');
      file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      all[name] = format("%o %u ", info.st_mode, info.st_uid) + bytes;
    }
    return all;
  }
};

void ClaimTable::set_control(Control control) {
  const std::string path = path_of(".ctl");
  const uint64_t state_at = offsetof(SegmentHeader, state);
  const uint64_t step_at = offsetof(SegmentHeader, step_committed);
  switch (control) {
    case Control::kMissing:
      fs::remove(path);
      return;
    case Control::kEmpty:
      fs::resize_file(path, 0);
      return;
    case Control::kUnwritten:
      return write_at(path, 0, std::string(sizeof(SegmentHeader), '\0'));
    case Control::kCreating:
      write_at(path, state_at, bytes_of_value(SegmentState::kCreating));
      return write_at(path, step_at, bytes_of_value(kNoStep));
    case Control::kRemoving:
      return write_at(path, state_at, bytes_of_value(kSegmentRemoving));
    case Control::kNoStep:  // made without one
    case Control::kValid:
      return;
    case Control::kBadChecksum:
      return flip(path, offsetof(SegmentHeader, header_checksum));
    case Control::kStateFlipped:
      return flip(path, state_at);
    case Control::kOtherVersion:
      return write_at(path, offsetof(SegmentHeader, version), bytes_of_value(kSegmentVersion + 1));
    case Control::kOtherOwner:
      ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
      return;
    case Control::kOtherMode:
      ASSERT_EQ(chmod(path.c_str(), 0644), 0);
      return;
    case Control::kSymlink: {
      const std::string elsewhere = directory_.path() + "/control";
      fs::copy_file(path, elsewhere, fs::copy_options::overwrite_existing);
      fs::remove(path);
      fs::create_symlink(elsewhere, path);
      return;
    }
  }
}

void ClaimTable::set_arenas(Arenas arenas) {
  for (const std::string suffix : {".r0", ".r1"}) {
    const std::string path = path_of(suffix);
    switch (arenas) {
      case Arenas::kValid:
        break;
      case Arenas::kDamaged:
        flip(path, offsetof(ArenaHeader, slot_bytes));
        break;
      case Arenas::kUnwritten:
        write_at(path, 0, std::string(sizeof(ArenaHeader), '\0'));
        break;
      case Arenas::kMissing:
        fs::remove(path);
        break;
      case Arenas::kOtherVersion:
        write_at(path, offsetof(ArenaHeader, version), bytes_of_value(kSegmentVersion + 1));
        break;
      case Arenas::kOtherMode:
        ASSERT_EQ(chmod(path.c_str(), 0640), 0);
        break;
    }
  }
}

void ClaimTable::expect_claim(StartMode mode, ExitCode wanted, bool starts_anew) {
  const auto before = snapshot();
  ClaimOutcome outcome = claim_job(plan_, mode);
  EXPECT_EQ(outcome.claim.has_value(), wanted == kOk) << outcome.failure.text;
  if (outcome.claim) {
    outcome.claim->lock.release_and_unlink();
    const auto after = snapshot();
    EXPECT_EQ(outcome.claim->resumed, !starts_anew);
    EXPECT_TRUE(starts_anew ? after.empty() : after == before) << after.size() << " segments";
    return;
  }
  EXPECT_EQ(outcome.failure.code, wanted) << outcome.failure.text;
  EXPECT_FALSE(outcome.failure.text.empty());
  EXPECT_TRUE(snapshot() == before) << "a refused run touched something, or left its lock";
  EXPECT_FALSE(fs::exists(run_->path())) << "a refused run left a run directory";
}

void ClaimTable::expect_clean(const CleanOptions& options, Outcome wanted) {
  const auto before = snapshot();
  const LeftoverPlaces places{segment_prefix(), directory_.path() + "/optlease"};
  const Result<CleanReport> report = clean_leftovers(places, options);
  ASSERT_TRUE(report.is_ok()) << report.status().text();
  EXPECT_EQ(report.value().removed.empty(), wanted != Outcome::kRemoved);
  EXPECT_EQ(report.value().kept.empty(), wanted != Outcome::kLeft);
  const bool gone = wanted == Outcome::kRemoved && !options.dry_run;
  EXPECT_TRUE(gone ? snapshot().empty() : snapshot() == before);
}

void ClaimTable::expect_after(const std::string& command, char found) {
  const Verdict& verdict = verdict_of(found);
  const std::string& job = run_->job_name();
  if (command == "run") return expect_claim(StartMode::kNew, verdict.run, true);
  if (command == "run --resume") return expect_claim(StartMode::kResume, verdict.resume, false);
  if (command == "run --fresh") return expect_claim(StartMode::kFresh, verdict.fresh, true);
  // The name keeps the test from everybody else's jobs; what a command without one does differently
  // is what these options say.
  if (command == "clean") return expect_clean({.only_job = job}, verdict.clean);
  if (command == "clean --dry-run") {
    return expect_clean({.dry_run = true, .only_job = job}, verdict.clean);
  }
  ASSERT_EQ(command, "clean JOB");
  expect_clean({.include_kept = true, .include_damaged = true, .only_job = job},
               verdict.clean_named);
}

TEST_F(ClaimTable, HoldsForEveryControlSegmentAndEveryArenaUnderEveryCommand) {
  for (const Row& row : kRows) {
    if (row.control == Control::kOtherOwner && geteuid() != 0) continue;  // root's alone to make
    for (size_t a = 0; a < kArenas.size(); ++a) {
      for (const char* command :
           {"run", "run --resume", "run --fresh", "clean", "clean --dry-run", "clean JOB"}) {
        SCOPED_TRACE(format("control %s, arenas %zu: %s", row.name, a, command));
        make_state(row.control == Control::kNoStep ? kNoStep : 7);
        ASSERT_NO_FATAL_FAILURE(set_arenas(kArenas[a]));
        ASSERT_NO_FATAL_FAILURE(set_control(row.control));
        ASSERT_NO_FATAL_FAILURE(expect_after(command, row.found[a]));
        clear();
        if (HasFailure()) return;  // the first is enough to read
      }
    }
  }
}

// A kept state goes by its name, or on request.
TEST_F(ClaimTable, OfAKeptStateIsThatOfAWholeOneButForCleanWithoutItsName) {
  for (const char* command : {"run", "run --resume", "clean JOB"}) {
    SCOPED_TRACE(command);
    make_state(7);
    write_at(path_of(".ctl"), offsetof(SegmentHeader, kept_on_purpose),
             bytes_of_value(uint32_t{1}));
    expect_clean({.only_job = run_->job_name()}, Outcome::kLeft);
    expect_after(command, kWhole);
    clear();
  }
}

// One bit of any word of the headers costs no plain run the state.
TEST_F(ClaimTable, NoFlippedBitOfAHeaderLetsARunRemoveAState) {
  for (const auto& [suffix, bytes] :
       {std::pair<std::string, uint64_t>{".ctl", sizeof(SegmentHeader)},
        {".r0", sizeof(ArenaHeader)}}) {
    for (uint64_t byte = 0; byte < bytes; ++byte) {
      SCOPED_TRACE(
          format("byte %llu of %s", static_cast<unsigned long long>(byte), suffix.c_str()));
      make_state(7);
      flip(path_of(suffix), byte);
      const auto before = snapshot();
      const ClaimOutcome outcome = claim_job(plan_, StartMode::kNew);
      EXPECT_FALSE(outcome.claim.has_value());
      EXPECT_TRUE(snapshot() == before);
      clear();
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace optlease
