// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/str_cat.h"
#include "formats/import/snapshot.h"

namespace reprise::formats {

namespace {

// A stack has some hundred frames.
constexpr size_t kMostFrames = 1024;
constexpr size_t kMostPathBytes = 4096;
constexpr size_t kMostNameBytes = 512;

// Returns the end of a path. Truncated, because all events may share a text of
// megabytes.
std::string_view PathOf(const PickleValue& frame) {
  if (frame.items().size() > 2 * kMostSnapshotKeys) return {};
  std::string_view path = frame.TextAt("filename");
  if (path.size() <= kMostPathBytes) return path;
  path.remove_prefix(path.size() - kMostPathBytes);
  // No file name is that long, so the truncated part is a folder, or this is no
  // path.
  const size_t slash = path.find('/');
  return slash == std::string_view::npos ? path.substr(0, 0)
                                         : path.substr(slash);
}

// Returns "train.py:12 loss" of a frame, whose file is called so; empty: it has
// none.
std::string FrameText(const PickleValue& frame, std::string_view file) {
  std::string text(file);
  int64_t line = 0;
  if (!text.empty() && frame.IntAt("line", line) && line > 0) {
    text += StrCat(":", line);
  }
  const std::string_view name = Cut(frame.TextAt("name"), kMostNameBytes);
  if (name.empty()) return text;
  return StrCat(text, text.empty() ? "" : " ", name);
}

}  // namespace

std::string_view Cut(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) {
    --most;
  }
  return text.substr(0, most);
}

std::string NameOfStack(const PickleValue* frames) {
  if (frames == nullptr || !frames->is_list()) return "";
  const std::vector<PickleValue>& all = frames->items();
  const PickleValue* best = nullptr;
  for (size_t i = 0; i < std::min(all.size(), kMostFrames); ++i) {
    const std::string_view path = PathOf(all[i]);
    if (!path.ends_with(".py")) continue;
    if (best == nullptr) best = &all[i];
    if (path.find("/torch/") == std::string_view::npos) {
      best = &all[i];
      break;
    }
  }
  if (best == nullptr && !all.empty()) best = &all[0];
  if (best == nullptr || best->items().size() > 2 * kMostSnapshotKeys)
    return "";
  const std::string_view path = PathOf(*best);
  return FrameText(*best, path.substr(path.rfind('/') + 1));
}

std::string LinesOfStack(const PickleValue* frames) {
  std::string lines;
  if (frames == nullptr || !frames->is_list()) return lines;
  const std::vector<PickleValue>& all = frames->items();
  for (size_t i = 0; i < std::min(all.size(), kMostFrames); ++i) {
    if (all[i].items().size() > 2 * kMostSnapshotKeys) continue;
    if (lines.size() > kMostPathBytes) break;
    std::string text = FrameText(all[i], Cut(PathOf(all[i]), kMostNameBytes));
    std::replace(text.begin(), text.end(), '\n', ' ');
    if (!lines.empty()) lines += '\n';
    lines += text.empty() ? "?" : text;
  }
  return lines;
}

StackTexts::Ids StackTexts::Of(const PickleValue* frames,
                               RecordingNames& names) {
  // Only what the reader keeps has an address that stays its own.
  const bool kept =
      frames != nullptr && frames->is_list() && frames->node().kept;
  if (kept) {
    const auto found = ids_.find(&frames->node());
    if (found != ids_.end()) return found->second;
  }
  const Ids ids{names.Intern(NameOfStack(frames)),
                names.InternStack(LinesOfStack(frames))};
  if (kept) ids_.emplace(&frames->node(), ids);
  return ids;
}

}  // namespace reprise::formats
