// SPDX-License-Identifier: Apache-2.0
#include "server/core/change.h"

#include "base/str_cat.h"
#include "server/core/log.h"
#include "server/core/metrics.h"

namespace reprise::server {

void Change::End(const Status& status) {
  outcome = CodeName(status.code());
  if (!status.ok()) detail = status.message();
}

void LogChange(const Change& change) {
  const auto cut = [](const std::string& text, size_t most_bytes = 256) {
    return ValidUtf8(text, most_bytes);
  };
  const std::string who =
      change.caller.who.empty() ? "server" : cut(change.caller.who);
  const std::string peer = cut(change.caller.peer);
  const std::string run_id = cut(change.run_id);
  const std::string subject = cut(change.subject);
  const std::string detail = cut(change.detail, 512);
  const auto named = [](const char* before, const std::string& text,
                        const char* after = "") {
    return text.empty() ? "" : StrCat(before, text, after);
  };
  LogInfo("change",
          StrCat(who, named(" (", peer, ")"), ": ", change.action,
                 named(" run ", run_id), named(", ", subject), ": ",
                 change.outcome, named(": ", detail)),
          {{"who", who},
           {"peer", peer},
           {"action", change.action},
           {"run_id", run_id},
           {"subject", subject},
           {"outcome", change.outcome},
           {"detail", detail}});
}

}  // namespace reprise::server
