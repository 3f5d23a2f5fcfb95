// SPDX-License-Identifier: Apache-2.0
#include "formats/convert/verify_proto.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/str_cat.h"
#include "formats/convert/capabilities.h"
#include "formats/convert/sentence.h"

namespace reprise::formats {
namespace {

// Numbers in protos are not trusted: one that does not fit becomes an id that
// no graph has.
int32_t Id(uint32_t id) {
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(std::min(id, kMost));
}

// Compares with a tolerance, because overheads are stored as doubles.
bool Reaches(double proven, double said) {
  return proven >= said - 1e-12 * std::max(1.0, std::abs(said));
}

class Verifier {
 public:
  Verifier(const v1::Plan& plan, const verify::Facts& facts)
      : plan_(plan), facts_(facts) {
    for (const planner::Op& op : facts.graph->ops) base_ns_ += op.time_ns;
  }

  v1::Verification Run() {
    if (plan_.has_certificate()) CheckProof();
    if (plan_.feasible()) {
      WalkSchedule();
      CheckBound();
    } else {
      CheckRefusal();
    }
    found_.set_holds(found_.wrong().empty());
    found_.set_sentence(
        plan_.inferred().empty()
            ? Sentence()
            : StrCat(Sentence(),
                     " This is about the graph, which is not the "
                     "step itself: ",
                     plan_.inferred(), "."));
    return found_;
  }

 private:
  void Wrong(const std::string& what) {
    if (found_.wrong().empty()) found_.set_wrong(what);
  }

  void CheckProof() {
    proof_ = ToCertificate(plan_.certificate());
    const Status accepted = verify::CheckCertificate(facts_, proof_);
    if (!accepted.ok()) {
      return Wrong(StrCat("the certificate is rejected: ", accepted.message()));
    }
    accepted_ = true;
    if (proof_.refuses) {
      found_.set_proven_least_bytes(proof_.least_bytes);
    } else {
      found_.set_proven_ns(proof_.added_ns);
    }
  }

  void WalkSchedule() {
    const std::vector<int64_t> entries(plan_.schedule().begin(),
                                       plan_.schedule().end());
    const auto walked = verify::Walk(facts_, entries);
    if (!walked.ok()) return Wrong(walked.status().message());
    const int64_t reserve =
        plan_.has_certificate()
            ? plan_.certificate().reserve_bytes()
            : std::max<int64_t>(0, plan_.peak_bytes() - walked->peak_bytes);
    found_.set_peak_bytes(walked->peak_bytes + reserve);
    found_.set_time_ns(walked->time_ns);
    if (found_.peak_bytes() > plan_.peak_bytes()) {
      Wrong(StrCat("the plan says a peak of ", plan_.peak_bytes(),
                   " bytes, its schedule needs ", found_.peak_bytes()));
    }
    if (found_.peak_bytes() > plan_.budget_bytes()) {
      Wrong(StrCat("the schedule needs ", found_.peak_bytes(),
                   " bytes, more than the budget of ", plan_.budget_bytes()));
    }
    if (walked->host_peak_bytes != plan_.host_peak_bytes()) {
      Wrong(StrCat("the plan says ", plan_.host_peak_bytes(),
                   " bytes on the host, its schedule needs ",
                   walked->host_peak_bytes));
    }
    if (walked->time_ns != plan_.time_ns() ||
        base_ns_ != plan_.base_time_ns()) {
      Wrong(StrCat("the plan says ", plan_.time_ns(), " ns instead of ",
                   plan_.base_time_ns(), " ns, its schedule takes ",
                   walked->time_ns, " ns instead of ", base_ns_, " ns"));
    }
  }

  // Returns whether the certificate is about this budget or a larger one.
  bool IsOfBudget() const {
    return accepted_ &&
           proof_.budget_bytes >=
               plan_.budget_bytes() - plan_.certificate().reserve_bytes();
  }

  // Returns what is proven, as a fraction of the time without a plan.
  double Proven() const {
    return base_ns_ > 0 ? static_cast<double>(found_.proven_ns()) /
                              static_cast<double>(base_ns_)
                        : 0;
  }

  void CheckBound() {
    const int64_t added_ns = found_.time_ns() - base_ns_;
    const bool proves = IsOfBudget() && !proof_.refuses;
    if (!proves) found_.set_proven_ns(0);
    const bool all = Reaches(Proven(), plan_.bound());
    found_.set_bound_proof(all && (proves || added_ns == 0)
                               ? v1::BOUND_PROOF_CHECKED
                           : plan_.bound() > 0 ? v1::BOUND_PROOF_SOLVER
                                               : v1::BOUND_PROOF_NONE);
    // Uses the tolerance of IsProven in the planner.
    found_.set_proven_optimal(found_.bound_proof() == v1::BOUND_PROOF_CHECKED &&
                              added_ns - found_.proven_ns() <=
                                  added_ns / 500'000 + base_ns_ / 100'000'000);
    if (found_.proven_ns() > added_ns && found_.time_ns() > 0) {
      Wrong("the certificate proves more than the schedule takes");
    }
    if (plan_.bound_proof() == v1::BOUND_PROOF_CHECKED && !all) {
      Wrong(StrCat("the bound is said to be checked, but of ",
                   FormatPercent(plan_.bound()), " only ",
                   FormatPercent(Proven()), " is proven"));
    }
    if (plan_.proven_optimal() && !found_.proven_optimal() &&
        plan_.bound_proof() != v1::BOUND_PROOF_UNSPECIFIED) {
      Wrong("the plan is said to be proven optimal, but is not");
    }
  }

  void CheckRefusal() {
    if (Undecided(plan_)) return found_.set_bound_proof(v1::BOUND_PROOF_NONE);
    const bool all = accepted_ && proof_.refuses &&
                     proof_.least_bytes + plan_.certificate().reserve_bytes() >=
                         plan_.infeasible().smallest_budget_bytes();
    found_.set_bound_proof(all ? v1::BOUND_PROOF_CHECKED
                               : v1::BOUND_PROOF_SOLVER);
    if (plan_.bound_proof() == v1::BOUND_PROOF_CHECKED && !all) {
      Wrong("the refusal is said to be checked, but is not proven");
    }
  }

  std::string Sentence() const {
    if (!found_.holds()) return "Not true: " + found_.wrong() + ".";
    const bool checked = found_.bound_proof() == v1::BOUND_PROOF_CHECKED;
    if (!plan_.feasible()) {
      if (Undecided(plan_)) return "Nothing is claimed: no plan, no refusal.";
      const std::string least =
          StrCat(plan_.infeasible().smallest_budget_bytes(), " bytes");
      return checked
                 ? StrCat("Proven: no plan of this executor fits in less than ",
                          least, ".")
                 : StrCat("Not proven here: that no plan fits in less than ",
                          least, " is the solver's word.");
    }
    const std::string walked =
        StrCat("The schedule is valid: its peak is ", found_.peak_bytes(),
               " bytes, its time ", found_.time_ns(), " ns.");
    const std::string bound = FormatPercent(plan_.bound());
    if (found_.proven_optimal()) return walked + " Proven: none is faster.";
    if (checked) {
      return StrCat(walked,
                    " Proven: every schedule of this executor adds at least ",
                    bound, ".");
    }
    if (found_.bound_proof() == v1::BOUND_PROOF_NONE) {
      return walked + " No bound is claimed.";
    }
    return StrCat(
        walked,
        " Not proven here: that every schedule of this executor adds at least ",
        bound, " is the solver's word; ", FormatPercent(Proven()),
        " is proven.");
  }

  const v1::Plan& plan_;
  const verify::Facts& facts_;
  int64_t base_ns_ = 0;
  verify::Certificate proof_;
  bool accepted_ = false;
  v1::Verification found_;
};

}  // namespace

void ToProto(const verify::Certificate& from, const verify::Executor& executor,
             int64_t reserve_bytes, v1::Certificate& to) {
  // The enums have the same numbers.
  to.set_method(static_cast<v1::ProofMethod>(from.method));
  to.set_refuses(from.refuses);
  to.set_budget_bytes(from.budget_bytes);
  to.set_reserve_bytes(reserve_bytes);
  to.set_added_ns(from.added_ns);
  to.set_least_bytes(from.least_bytes);
  for (const planner::OpId at : from.at) {
    to.add_at(static_cast<uint32_t>(at));
  }
  to.set_inside(from.inside);
  for (const verify::InsideRow& row : from.inside_rows) {
    to.add_inside_segments(static_cast<uint32_t>(row.segment));
    to.add_inside_ops(static_cast<uint32_t>(row.op));
  }
  for (const verify::Node& node : from.tree) {
    v1::ProofNode& added = *to.add_tree();
    if (node.branch >= 0) {
      added.set_branch(static_cast<uint32_t>(node.branch) + 1);
      continue;
    }
    added.set_shift(static_cast<uint32_t>(node.shift));
    added.set_byte_shift(static_cast<uint32_t>(node.byte_shift));
    added.set_narrows(node.narrows);
    added.set_impossible(node.impossible);
    added.set_price(node.price);
    for (const verify::Multiplier& multiplier : node.multipliers) {
      added.add_rows(static_cast<uint32_t>(multiplier.row));
      added.add_multipliers(multiplier.value);
    }
  }
  to.set_max_runs(executor.max_runs);
  to.set_recompute_in_backward_only(executor.recompute_in_backward_only);
  to.set_seeded_ok(executor.seeded_ok);
  to.set_collective_ok(executor.collective_ok);
  to.set_duplicate_outputs(executor.duplicate_outputs);
  to.set_program_frees(executor.program_frees);
  to.set_ns_per_op(executor.ns_per_op);
}

verify::Executor ToExecutor(const v1::Certificate& from) {
  return {.max_runs = from.max_runs(),
          .recompute_in_backward_only = from.recompute_in_backward_only(),
          .seeded_ok = from.seeded_ok(),
          .collective_ok = from.collective_ok(),
          .duplicate_outputs = from.duplicate_outputs(),
          .program_frees = from.program_frees(),
          .ns_per_op = from.ns_per_op()};
}

verify::Certificate ToCertificate(const v1::Certificate& from) {
  verify::Certificate to{
      .method = from.method() > v1::PROOF_METHOD_NESTED || from.method() < 0
                    ? verify::Method::kNone
                    : static_cast<verify::Method>(from.method()),
      .refuses = from.refuses(),
      .budget_bytes = from.budget_bytes(),
      .added_ns = from.added_ns(),
      .least_bytes = from.least_bytes(),
      .inside = from.inside()};
  for (const uint32_t at : from.at()) to.at.push_back(Id(at));
  const int rows =
      std::min(from.inside_segments_size(), from.inside_ops_size());
  for (int i = 0; i < rows; ++i) {
    to.inside_rows.push_back(
        {.segment = Id(from.inside_segments(i)), .op = Id(from.inside_ops(i))});
  }
  for (const v1::ProofNode& node : from.tree()) {
    verify::Node& added = to.tree.emplace_back();
    added.branch = Id(node.branch()) - 1;
    added.shift = Id(node.shift());
    added.byte_shift = Id(node.byte_shift());
    added.narrows = node.narrows();
    added.impossible = node.impossible();
    added.price = node.price();
    const int count = std::min(node.rows_size(), node.multipliers_size());
    for (int i = 0; i < count; ++i) {
      added.multipliers.push_back(
          {.row = Id(node.rows(i)), .value = node.multipliers(i)});
    }
  }
  return to;
}

v1::Verification VerifyPlan(const planner::StepGraph& graph,
                            const v1::Plan& plan,
                            const verify::Executor& otherwise) {
  verify::Executor executor =
      plan.has_certificate() ? ToExecutor(plan.certificate()) : otherwise;
  executor.link = LinkOf(plan.link());
  const auto facts = verify::ReadFacts(graph, executor);
  if (!facts.ok()) {
    v1::Verification wrong;
    wrong.set_wrong(facts.status().message());
    wrong.set_sentence("Not true: " + facts.status().message() + ".");
    return wrong;
  }
  return Verifier(plan, *facts).Run();
}

}  // namespace reprise::formats
