// SPDX-License-Identifier: Apache-2.0
//
// Decides what the forwarder sends next on a stream.
#include <algorithm>
#include <utility>

#include "base/str_cat.h"
#include "server/collect/forwarder.h"

namespace reprise::server {

std::optional<v1::Up> Forwarder::NextMessage(int64_t key, Link& link,
                                             const Entry& entry) {
  v1::Up up;
  if (entry.caps != link.caps_sent) {
    link.caps_sent = entry.caps;
    *up.mutable_caps() = *entry.caps;
    return up;
  }
  if (link.names_sent < entry.last_name) {
    auto names = source_->NamesAfter(key, link.names_sent);
    if (!names.ok()) {
      SetTrouble(names.status().message());
      return std::nullopt;
    }
    for (SpooledName& name : *names) {
      v1::NameDef& def = *up.mutable_defs()->add_names();
      def.set_id(name.name);
      def.set_text(std::move(name.text));
      link.names_sent = name.ordinal;
    }
    if (!names->empty()) return up;
    link.names_sent = entry.last_name;
  }
  if (link.send_next <= entry.last_seq) {
    if (link.send_next - 1 >= entry.acked + link.max_inflight) {
      return std::nullopt;
    }
    auto found = source_->NextChunk(key, link.send_next);
    if (!found.ok()) {
      SetTrouble(found.status().message());
      return std::nullopt;
    }
    std::optional<v1::Chunk>& next = *found;
    if (!next || next->seq() > link.send_next) {
      return LostMessage(
          key, link, next ? next->seq() - 1 : entry.last_seq,
          link.send_next <= entry.acked_by_server
              ? std::string("acknowledged earlier, no longer kept here")
              : source_->missing());
    }
    if (link.refusals >= kMaxRefusals && next->seq() == entry.acked + 1) {
      link.refusals = 0;
      return LostMessage(key, link, next->seq(),
                         StrCat("refused by the server: ", link.refusal));
    }
    if (link.max_chunk_bytes != 0 &&
        next->body().size() > link.max_chunk_bytes) {
      return LostMessage(key, link, next->seq(),
                         StrCat("larger than the server's limit of ",
                                link.max_chunk_bytes, " bytes"));
    }
    if (next->seq() <= link.highest_sent) {
      const std::lock_guard lock(mutex_);
      ++counts_.resent;
    }
    link.highest_sent = std::max(link.highest_sent, next->seq());
    ++link.send_next;
    *up.mutable_chunk() = *std::move(next);
    return up;
  }
  if (entry.bye && entry.acked >= entry.last_seq) {
    *up.mutable_bye() = *entry.bye;
    link.bye_sent = true;
    return up;
  }
  return std::nullopt;
}

v1::Up Forwarder::LostMessage(int64_t key, Link& link, uint64_t to,
                              std::string reason) {
  v1::Up up;
  v1::Lost& lost = *up.mutable_lost();
  lost.set_from(link.send_next);
  lost.set_to(to);
  lost.set_reason(std::move(reason));
  link.send_next = to + 1;
  bool advanced = false;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    counts_.lost += lost.to() - lost.from() + 1;
    // Lost chunks need no acknowledgement. If the stream breaks before this
    // arrives, Welcome.resume_after makes us send it again.
    advanced = lost.from() <= entry.acked + 1 && to > entry.acked;
    if (advanced) entry.acked = to;
  }
  if (advanced) events_.acked(key, to);
  return up;
}

}  // namespace reprise::server
