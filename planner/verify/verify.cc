// SPDX-License-Identifier: Apache-2.0
#include "planner/verify/verify.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/str_cat.h"
#include "planner/verify/chain.h"
#include "planner/verify/domain.h"
#include "planner/verify/program.h"
#include "planner/verify/window.h"

namespace reprise::verify {
namespace {

// The time of a check grows with the nested windows of a claim.
constexpr size_t kMostNested = 16;

Status TooLittle(int64_t proven, int64_t claimed) {
  return InvalidArgument(StrCat("a leaf proves ", proven, " ns, not the ",
                                claimed, " ns claimed"));
}

Status CheckWindow(const Facts& facts, const Certificate& claim) {
  Window window(facts, claim.at);
  if (claim.refuses) {
    const int64_t least = window.LeastBytes();
    if (least >= claim.least_bytes) return OkStatus();
    return InvalidArgument(StrCat("the window proves ", least,
                                  " bytes, not the ", claim.least_bytes,
                                  " bytes claimed"));
  }
  if (claim.tree.size() != 1 || claim.tree.front().branch >= 0 ||
      claim.tree.front().narrows || claim.tree.front().impossible) {
    return InvalidArgument("not one leaf with a price");
  }
  ASSIGN_OR_RETURN(const int64_t added,
                   window.AddedNs(claim.tree.front(), claim.budget_bytes));
  if (added >= claim.added_ns) return OkStatus();
  return TooLittle(added, claim.added_ns);
}

Status CheckProgram(const Facts& facts, const Certificate& claim) {
  // For a refusal, the budget in which nothing fits: one byte less than the
  // claim.
  const int64_t budget =
      claim.refuses ? claim.least_bytes - 1 : claim.budget_bytes;
  ASSIGN_OR_RETURN(
      const Program program,
      Program::Build(facts, budget, claim.at, claim.inside, claim.inside_rows));
  const int64_t claimed = claim.refuses ? Program::kNothing : claim.added_ns;
  // The tree in preorder, with what the path to the current node fixes. Every
  // inner node has both children, so the leaves cover all cases.
  struct Open {
    int32_t column;
    int children;  // begun so far
    size_t fixed;  // columns fixed before it
  };
  std::vector<Open> path;
  Domain domain(program);
  for (size_t i = 0; i < claim.tree.size(); ++i) {
    const Node& node = claim.tree[i];
    if (node.branch >= 0) {
      if (node.branch >= program.column_count()) {
        return InvalidArgument("the tree branches on no column");
      }
      for (const Open& open : path) {
        if (open.column == node.branch) {
          return InvalidArgument("the tree branches twice on the same");
        }
      }
      path.push_back({node.branch, 1, domain.fixed().size()});
      domain.Fix(node.branch, 1);
      continue;
    }
    if (node.narrows) {
      RETURN_IF_ERROR(domain.Narrow(node, claimed));
      continue;
    }
    if (!domain.empty()) {
      ASSIGN_OR_RETURN(const int64_t added,
                       program.AddedNs(node, domain.low(), domain.high()));
      if (added < claimed) return TooLittle(added, claimed);
    }
    while (!path.empty() && path.back().children == 2) path.pop_back();
    if (path.empty()) {
      if (i + 1 == claim.tree.size()) return OkStatus();
      return InvalidArgument("the tree goes on too long");
    }
    path.back().children = 2;
    domain.UndoTo(path.back().fixed);
    domain.Fix(path.back().column, 0);
  }
  return InvalidArgument("the tree ends early");
}

Status CheckWorkingSet(const Facts& facts, const Certificate& claim) {
  const OpId at = claim.at.front();
  const planner::StepGraph& graph = *facts.graph;
  std::vector<uint8_t> there(graph.storages.size(), 0);
  for (const Value v : facts.needs[at]) there[facts.storage[v]] = 1;
  for (const Value v : facts.makes[at]) there[facts.storage[v]] = 1;
  int64_t bytes = graph.static_bytes + graph.ops[at].workspace_bytes;
  for (size_t s = 0; s < there.size(); ++s) {
    const auto storage = static_cast<StorageId>(s);
    const OpId until = facts.HeldUntil(storage);
    const bool held = until != planner::kNoOp && until >= at &&
                      facts.Before(storage, at) >= 0;
    if (held || there[s] != 0) bytes += graph.storages[s].bytes;
  }
  if (bytes >= claim.least_bytes) return OkStatus();
  return InvalidArgument(StrCat("op ", at, " needs ", bytes, " bytes, not the ",
                                claim.least_bytes, " bytes claimed"));
}

}  // namespace

Status CheckCertificate(const Facts& facts, const Certificate& claim) {
  for (const OpId at : claim.at) {
    if (at < 0 || at >= facts.op_count) {
      return InvalidArgument(StrCat("proof: there is no op ", at));
    }
  }
  if (claim.method == Method::kNone || claim.at.empty()) {
    return InvalidArgument("proof: there is none");
  }
  // The other methods know of no host memory.
  const bool link = facts.executor.link.host_bytes > 0;
  if (link && claim.method != Method::kWorkingSet &&
      (claim.method != Method::kWindow || claim.refuses)) {
    return InvalidArgument("proof: of a step without host memory");
  }
  const bool several =
      claim.method == Method::kWindows || claim.method == Method::kNested;
  if (!several && claim.at.size() != 1) {
    return InvalidArgument("proof: of one op, but names several");
  }
  if (claim.method == Method::kNested &&
      (claim.refuses || claim.at.size() > kMostNested ||
       std::adjacent_find(claim.at.begin(), claim.at.end(),
                          std::greater_equal<>()) != claim.at.end())) {
    return InvalidArgument("proof: not of a few windows, ascending");
  }
  switch (claim.method) {
    case Method::kWindow:
    case Method::kNested:
      return CheckWindow(facts, claim);
    case Method::kWindows:
      return CheckProgram(facts, claim);
    case Method::kWorkingSet:
    case Method::kChain:
      if (!claim.refuses) return InvalidArgument("proof: not one of a bound");
      return claim.method == Method::kChain
                 ? CheckChain(facts, claim.at.front(), claim.least_bytes)
                 : CheckWorkingSet(facts, claim);
    case Method::kNone:
      break;
  }
  return InvalidArgument("proof: there is none");
}

}  // namespace reprise::verify
