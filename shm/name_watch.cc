#include "shm/name_watch.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "shm/eintr.h"

namespace optlease {
namespace {

// Reads all bytes of an open segment that may have no name any more.
Status read_all(const Segment& from, char* into) {
  uint64_t done = 0;
  while (done < from.bytes()) {
    const ssize_t got = retry_eintr([&] {
      return ::pread(from.fd(), into + done, from.bytes() - done, static_cast<off_t>(done));
    });
    if (got <= 0) {
      return {StatusCode::kIo, format("reading %s, which has no name any more: %s",
                                      Segment::path_of(from.name()).c_str(),
                                      got == 0 ? "it was cut short" : ::strerror(errno))};
    }
    done += static_cast<uint64_t>(got);
  }
  return Status::ok();
}

}  // namespace

Result<NameWatch> NameWatch::over(const std::vector<std::string>& names) {
  NameWatch watch;
  OPTLEASE_TRY(watch.add(names));
  return watch;
}

Status NameWatch::add(const std::vector<std::string>& names, Successor successor) {
  std::vector<Watched> added;
  for (const std::string& name : names) {
    Result<Segment> segment = Segment::open(name, Segment::Access::kReadOnly);
    if (!segment) return segment.status();
    segment.value().unmap();
    added.push_back({std::move(segment).value(), false, successor});
  }
  std::move(added.begin(), added.end(), std::back_inserter(watched_));
  return Status::ok();
}

Status NameWatch::serve(const std::string& name) {
  for (Watched& watched : watched_) {
    if (watched.segment.name() == name) return watched.segment.mark_in_use();
  }
  OPTLEASE_CHECK(false, "segment %s is not watched", name.c_str());
  return Status::ok();
}

bool NameWatch::is_ours(Watched& watched) {
  if (watched.segment.name_still_ours()) return true;
  if (watched.successor == nullptr) return false;
  Result<Segment> stands = Segment::open(watched.segment.name(), Segment::Access::kReadOnly);
  if (!stands) return false;
  stands.value().unmap();
  if (!watched.successor(watched.segment, stands.value())) return false;
  watched = {std::move(stands).value(), false, watched.successor};
  return true;
}

std::vector<std::string> NameWatch::lost_now() {
  std::vector<std::string> lost;
  for (Watched& watched : watched_) {
    if (is_ours(watched) || watched.told) continue;
    watched.told = true;
    lost.push_back(Segment::path_of(watched.segment.name()));
  }
  return lost;
}

Status NameWatch::restore(std::vector<std::string>* made) {
  Status first;
  for (Watched& watched : watched_) {
    if (is_ours(watched)) continue;
    const std::string name = watched.segment.name();
    Result<Segment> anew = Segment::create(name, watched.segment.bytes());
    Status status = anew.status();
    if (status.is_ok()) {
      status = read_all(watched.segment, static_cast<char*>(anew.value().data()));
      if (!status.is_ok()) Segment::unlink(name);
    }
    if (!status.is_ok()) {
      if (first.is_ok()) first = status;
      continue;
    }
    anew.value().unmap();
    watched = {std::move(anew).value(), false, watched.successor};
    made->push_back(Segment::path_of(name));
  }
  return first;
}

}  // namespace optlease
