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

// Walks a tree in preorder: `branch` fixes what an inner node names (-1: frees
// it again), `narrow` what a narrowing node proves, and `leaf` checks a leaf
// under the current fixes. Every inner node has both children, so the leaves
// cover all cases.
Status WalkTree(const std::vector<Node>& tree,
                const std::function<Status(int32_t, int)>& branch,
                const std::function<Status(const Node&)>& narrow,
                const std::function<Status(const Node&)>& leaf) {
  struct Open {
    int32_t id;
    int children;  // begun so far
  };
  std::vector<Open> path;
  size_t i = 0;
  while (true) {
    if (i >= tree.size()) return InvalidArgument("the tree ends early");
    const Node& node = tree[i++];
    if (node.branch >= 0) {
      for (const Open& open : path) {
        if (open.id == node.branch) {
          return InvalidArgument("the tree branches twice on the same");
        }
      }
      path.push_back({node.branch, 1});
      RETURN_IF_ERROR(branch(node.branch, 1));
      continue;
    }
    if (node.narrows) {
      RETURN_IF_ERROR(narrow(node));
      continue;
    }
    RETURN_IF_ERROR(leaf(node));
    while (!path.empty() && path.back().children == 2) {
      RETURN_IF_ERROR(branch(path.back().id, -1));
      path.pop_back();
    }
    if (path.empty()) break;
    path.back().children = 2;
    RETURN_IF_ERROR(branch(path.back().id, 0));
  }
  if (i != tree.size()) return InvalidArgument("the tree goes on too long");
  return OkStatus();
}

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
  return WalkTree(
      claim.tree,
      [&](int32_t value, int present) {
        if (!window.Has(value)) {
          return InvalidArgument("the tree branches on no value of the window");
        }
        window.Branch(value, present);
        return OkStatus();
      },
      [](const Node&) {
        return InvalidArgument("the tree of a window narrows nothing");
      },
      [&](const Node& leaf) -> Status {
        ASSIGN_OR_RETURN(const int64_t added,
                         window.AddedNs(leaf, claim.budget_bytes));
        return added >= claim.added_ns ? OkStatus()
                                       : TooLittle(added, claim.added_ns);
      });
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
  Domain domain(program);
  std::vector<size_t> before;  // fixes at each inner node of the path
  return WalkTree(
      claim.tree,
      [&](int32_t column, int value) {
        if (column >= program.column_count()) {
          return InvalidArgument("the tree branches on no column");
        }
        if (value == 1) before.push_back(domain.fixed().size());
        domain.UndoTo(before.back());
        if (value < 0) {
          before.pop_back();
        } else {
          domain.Fix(column, static_cast<uint8_t>(value));
        }
        return OkStatus();
      },
      [&](const Node& node) { return domain.Narrow(node, claimed); },
      [&](const Node& leaf) -> Status {
        if (domain.empty()) return OkStatus();
        ASSIGN_OR_RETURN(const int64_t added,
                         program.AddedNs(leaf, domain.low(), domain.high()));
        return added >= claimed ? OkStatus() : TooLittle(added, claimed);
      });
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
  const bool several =
      claim.method == Method::kWindows || claim.method == Method::kNested;
  if (!several && claim.at.size() != 1) {
    return InvalidArgument("proof: of one op, but names several");
  }
  // A branch or an impossible leaf would be of one window, not of all.
  if (claim.method == Method::kNested &&
      (claim.refuses || claim.at.size() > kMostNested ||
       std::adjacent_find(claim.at.begin(), claim.at.end(),
                          std::greater_equal<>()) != claim.at.end() ||
       claim.tree.size() != 1 || claim.tree.front().impossible)) {
    return InvalidArgument("proof: not one leaf of a few windows, ascending");
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
