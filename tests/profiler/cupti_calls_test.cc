// Compares profiler/cupti_calls.h with NVIDIA's numbers by name, in both
// directions: a number of ours that means another call is found, and so is a
// call of theirs that is neither in our table nor among the exceptions below.
//
// The numbers of CUDA 13 are in tests/fixtures/cupti_calls.txt, so this always
// runs; it runs again on the headers of a toolkit, where there is one.
#include "profiler/cupti_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace reprise::profiler {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// The families of which every call is either in the table or an exception.
constexpr char kFamilies[] =
    "Launch|Memcpy|Memset|MemPrefetch|MemDiscard|Decompress|GraphUpload";

struct Exception {
  const char* calls;  // matched against "domain number name"
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"Node", "builds or changes a graph and runs nothing"},
    {"GraphUpload", "prepares a graph on the device and runs none of it"},
    {"LaunchHostFunc", "runs a function of the host"},
    {"MemPrefetch|MemDiscard",
     "moves pages of managed memory, which CUPTI reports as UNIFIED_MEMORY_"
     "COUNTER: a kind that no window enables, without a correlation id"},
    {"Decompress",
     "is reported as MEM_DECOMPRESS, a kind that no window enables"},
    {"driver [0-9]+ cu64|driver [0-9][0-9] cuMem(cpy|set)",
     "the interface before CUDA 4.0, with addresses of 32 bits or their "
     "stopgap; a program compiled since calls the one with _v2"},
    {"driver 248 ", "no header of CUDA declares it; 13.5 has no name for it"},
};

// Calls of one domain, "runtime" or "driver".
struct Known {
  std::map<std::string, uint32_t> by_name;
  std::map<uint32_t, std::string> by_number;

  void Add(const std::string& name, uint32_t number) {
    by_name[name] = number;
    by_number[number] = name;
  }
  uint32_t newest() const {
    return by_number.empty() ? 0 : by_number.rbegin()->first;
  }
};
using Domains = std::map<std::string, Known>;

bool Contains(const std::string& text, const char* pattern) {
  return ::testing::Matches(::testing::ContainsRegex(pattern))(text);
}

// "cudaMemcpyAsync_ptsz_v7000" is cudaMemcpyAsync per thread.
struct Parts {
  std::string name;
  bool per_thread = false;
};
Parts PartsOf(std::string theirs) {
  if (Contains(theirs, "_v[0-9]{4,}$")) theirs.resize(theirs.rfind("_v"));
  const bool per_thread = Contains(theirs, "_pt[sd][sz]$");
  if (per_thread) theirs.resize(theirs.rfind("_pt"));
  return {theirs, per_thread};
}

// Returns what is wrong with one number of our table.
std::string WrongNumber(const Known& known, uint32_t number,
                        const cupti::Call& call, bool per_thread) {
  if (number == 0 || number > known.newest()) return "";  // newer than these
  const auto found = known.by_number.find(number);
  const std::string is =
      found == known.by_number.end() ? "none of these families" : found->second;
  const Parts parts = PartsOf(is);
  if (parts.name == call.name && parts.per_thread == per_thread) {
    return "";
  }
  return std::to_string(number) + " is " + is + ", meant as " + call.name +
         (per_thread ? " per thread" : "");
}

template <size_t kCount>
std::vector<std::string> WrongNumbers(const Known& known,
                                      const cupti::Call (&calls)[kCount]) {
  std::vector<std::string> wrong;
  for (const cupti::Call& call : calls) {
    for (const bool per_thread : {false, true}) {
      const std::string what = WrongNumber(
          known, per_thread ? call.per_thread : call.number, call, per_thread);
      if (!what.empty()) wrong.push_back(what);
    }
  }
  return wrong;
}

std::string ReasonOfException(const std::string& call) {
  for (const Exception& exception : kExceptions) {
    if (Contains(call, exception.calls)) {
      return exception.reason;
    }
  }
  return "";
}

// Returns the calls of the families that are neither in our table nor
// exceptions, and those that are both.
std::vector<std::string> Misplaced(const std::string& domain,
                                   const Known& known,
                                   const cupti::CallSet& ours) {
  std::vector<std::string> misplaced;
  for (const auto& [name, number] : known.by_name) {
    if (!Contains(name, kFamilies)) continue;
    const std::string call = domain + " " + std::to_string(number) + " " + name;
    if (ours.Has(number) != ReasonOfException(call).empty()) {
      misplaced.push_back(call);
    }
  }
  return misplaced;
}

void ExpectTheSame(const Domains& domains) {
  const Known& runtime = domains.at("runtime");
  const Known& driver = domains.at("driver");
  EXPECT_THAT(WrongNumbers(runtime, cupti::kRuntimeTable), IsEmpty());
  EXPECT_THAT(WrongNumbers(driver, cupti::kDriverTable), IsEmpty());
  EXPECT_THAT(Misplaced("runtime", runtime, cupti::kRuntimeCalls), IsEmpty());
  EXPECT_THAT(Misplaced("driver", driver, cupti::kDriverCalls), IsEmpty());
}

Domains OfTheFixture() {
  Domains domains;
  std::ifstream file(REPRISE_SOURCE_DIR "/tests/fixtures/cupti_calls.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string domain, name;
    uint32_t number = 0;
    words >> domain >> number >> name;
    domains[domain].Add(name, number);
  }
  return domains;
}

// Reads cupti_runtime_cbid.h and cupti_driver_cbid.h of a folder.
Domains OfTheHeaders(const std::filesystem::path& folder) {
  const std::string kBeforeName = "_TRACE_CBID_";
  Domains domains;
  for (const std::string domain : {"runtime", "driver"}) {
    std::ifstream file(folder / ("cupti_" + domain + "_cbid.h"));
    EXPECT_TRUE(file) << "no header of " << domain << " calls in " << folder;
    for (std::string line; std::getline(file, line);) {
      const size_t at = line.find(kBeforeName);
      if (at == std::string::npos) continue;
      std::istringstream words(line.substr(at + kBeforeName.size()));
      std::string name, equals;
      uint32_t number = 0;
      if (words >> name >> equals >> number && name != "INVALID") {
        domains[domain].Add(name, number);
      }
    }
  }
  return domains;
}

// Those of a toolkit: named in the environment (to try several versions), or
// found by CMake. Empty: none.
std::string Headers() {
  const char* named = std::getenv("REPRISE_CUPTI_INCLUDE");
  return named != nullptr ? named : REPRISE_CUPTI_HEADERS;
}

TEST(CuptiCallsTest, EveryCallThatPutsWorkOnADeviceIsThereByItsNumber) {
  const Domains known = OfTheFixture();
  ASSERT_EQ(known.at("runtime").by_name.size(), 114u);
  ASSERT_EQ(known.at("driver").by_name.size(), 170u);

  ExpectTheSame(known);
}

TEST(CuptiCallsTest, TheHeadersOfAToolkitSayTheSame) {
  const std::string folder = Headers();
  if (folder.empty()) {
    GTEST_SKIP() << "no headers of CUPTI on this machine: our numbers are "
                    "compared with the fixture only";
  }
  const Domains headers = OfTheHeaders(folder);
  ASSERT_EQ(headers.size(), 2u);
  for (const auto& [domain, known] : headers) {
    ASSERT_GT(known.by_name.size(), 300u) << domain;  // they were understood
  }

  ExpectTheSame(headers);
  // A toolkit may have dropped a name; one that it has must mean the same.
  for (const auto& [domain, known] : OfTheFixture()) {
    for (const auto& [name, number] : known.by_name) {
      const auto found = headers.at(domain).by_name.find(name);
      if (found == headers.at(domain).by_name.end()) continue;
      EXPECT_EQ(found->second, number) << name;
    }
  }
}

// A wrong number and a missing call are what the two directions are for.
TEST(CuptiCallsTest, AWrongNumberAndANewCallAreNamed) {
  Known known;
  known.Add("cudaMemset2DAsync_ptsz_v7000", 236);
  known.Add("cudaStreamGetPriority_ptsz_v7000", 237);
  known.Add("cudaMemcpyAnew_v14000", 600);
  const cupti::Call wrong[] = {{0, 237, "cudaMemset2DAsync"}};

  EXPECT_THAT(
      WrongNumbers(known, wrong),
      testing::ElementsAre("237 is cudaStreamGetPriority_ptsz_v7000, meant as "
                           "cudaMemset2DAsync per thread"));
  EXPECT_THAT(Misplaced("runtime", known, cupti::SetOf(wrong)),
              testing::ElementsAre("runtime 600 cudaMemcpyAnew_v14000",
                                   "runtime 236 cudaMemset2DAsync_ptsz_v7000"));
}

TEST(CuptiCallsTest, EveryExceptionIsOneAndNoneIsInTheTable) {
  const Domains known = OfTheFixture();
  for (const Exception& exception : kExceptions) {
    std::vector<std::string> calls;
    for (const auto& [domain, of] : known) {
      for (const auto& [name, number] : of.by_name) {
        const std::string call =
            domain + " " + std::to_string(number) + " " + name;
        if (Contains(call, exception.calls)) {
          calls.push_back(call);
        }
      }
    }
    EXPECT_THAT(calls, Not(IsEmpty())) << exception.reason;
  }
}

}  // namespace
}  // namespace reprise::profiler
