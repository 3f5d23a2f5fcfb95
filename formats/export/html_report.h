// SPDX-License-Identifier: Apache-2.0
//
// Timelines as one HTML file to send to somebody: what the plan says, memory
// over each step as a drawing, and what is alive at its peak. It has no script,
// loads nothing, and follows the reader's light or dark setting.
//
// It is as large as a screen, not as the step: a drawing has 1,000 columns, each
// as high as the largest value in it, and a table at most 100 rows; what is
// left out stands below it with its bytes. Of the program it holds names of ops,
// modules and source lines, no source.
#pragma once

#include <string>
#include <vector>

#include "formats/export/timeline.h"

namespace reprise::formats {

struct ReportFacts {
  std::string name = {};
  std::string sentence = {};  // empty: there is none
  int64_t budget_bytes = 0;   // 0: there is none
};

std::string WriteHtmlReport(const ReportFacts& facts,
                            const std::vector<ExportTimeline>& timelines);

}  // namespace reprise::formats
