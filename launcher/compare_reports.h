// `optlease compare A.json B.json`: two reports of the same job side by side, as the quickstart
// shows them: loss curves, what died and how long each recovery took, digests. Pure text in, text
// out.
#pragma once

#include <string>

#include "shm/contract/status.h"

namespace optlease {

struct ReportComparison {
  bool same_state = false;  // both have a state digest and the two are equal
  bool both_passed = false;
  std::string text;  // for people
};

// InvalidArgument where one of them is no report.
Result<ReportComparison> compare_reports(const std::string& name_a, const std::string& json_a,
                                         const std::string& name_b, const std::string& json_b);

}  // namespace optlease
