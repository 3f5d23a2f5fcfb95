// Reads back the buffers that REPRISE_RECORD_CUPTI writes, pointers included.
// Recordings made on a machine with a GPU are in tests/fixtures/cupti; each is
// decoded here with the installed library.
#include <dlfcn.h>
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "profiler/cupti_abi.h"
#include "profiler/cupti_callbacks.h"
#include "tests/profiler/cupti_test.h"

namespace reprise::profiler::testing {
namespace {

struct Recording {
  CuptiRecordingHeader header = {};
  std::vector<uint64_t> buffer;  // aligned
  std::map<uint64_t, std::string> names;

  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(buffer.data()); }
};

Recording ReadRecording(const std::filesystem::path& path) {
  Recording recording;
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&recording.header),
            sizeof recording.header);
  EXPECT_EQ(recording.header.magic, kCuptiRecordingMagic);
  EXPECT_LE(recording.header.valid, 64u << 20);
  recording.buffer.resize((recording.header.valid + 7) / 8);
  file.read(reinterpret_cast<char*>(recording.bytes()),
            static_cast<std::streamsize>(recording.header.valid));
  for (uint32_t i = 0; i < recording.header.names; ++i) {
    uint64_t address = 0;
    uint32_t n = 0;
    file.read(reinterpret_cast<char*>(&address), sizeof address);
    file.read(reinterpret_cast<char*>(&n), sizeof n);
    std::string name(n, 0);
    file.read(name.data(), n);
    recording.names[address] = name;
  }
  EXPECT_TRUE(file.good()) << path;
  return recording;
}

using Next = int (*)(uint8_t*, size_t, uint8_t**);

// Returns kernel names and durations, in order; patches the pointers first.
std::vector<std::pair<std::string, uint64_t>> Kernels(Recording& recording,
                                                      Next next) {
  std::vector<std::pair<std::string, uint64_t>> kernels;
  for (uint8_t* record = nullptr;
       next(recording.bytes(), recording.header.valid, &record) == 0;) {
    if (cupti::Field<uint32_t>(record, 0) != cupti::kConcurrentKernel) continue;
    const auto address =
        cupti::Field<uint64_t>(record, cupti::kKernelLayout.name);
    const auto found = recording.names.find(address);
    EXPECT_NE(found, recording.names.end());
    const uint64_t start =
        cupti::Field<uint64_t>(record, cupti::kKernelLayout.start);
    const uint64_t end =
        cupti::Field<uint64_t>(record, cupti::kKernelLayout.end);
    kernels.emplace_back(found == recording.names.end() ? "" : found->second,
                         end - start);
  }
  return kernels;
}

class CuptiReplayTest : public CuptiTest {};

TEST_F(CuptiReplayTest, ARecordedBufferIsReadAgainElsewhere) {
  for (const Layout layout : kAllLayouts) {
    const std::string folder = folder_ + "/" + std::to_string(int(layout));
    std::filesystem::create_directory(folder);
    In(layout, [&](FakeCupti& cupti) {
      setenv("REPRISE_RECORD_CUPTI", folder.c_str(), 1);
      Collector collector(socket_, shelf_);
      Start();
      reprise_window_begin(0);
      cupti.Launch("first", 10, false);
      cupti.Copy(1, 1);
      cupti.Launch("second", 20, false);
      cupti.Launch("second", 30, false);
      reprise_window_end();
      EXPECT_EQ(reprise_flush(10000), REPRISE_OK);
    });

    // This process has none of the memory that the recorded pointers refer to.
    void* library = dlopen(FakeCuptiPath(layout).c_str(), RTLD_NOW);
    ASSERT_NE(library, nullptr);
    const auto next =
        reinterpret_cast<Next>(dlsym(library, "cuptiActivityGetNextRecord"));
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      ++files;
      Recording recording = ReadRecording(entry.path());
      EXPECT_THAT(Kernels(recording, next),
                  ::testing::ElementsAre(std::pair("first", 10),
                                         std::pair("second", 20),
                                         std::pair("second", 30)));
    }
    EXPECT_EQ(files, 1);
  }
}

// The library that filled a buffer must walk it: CUDA 13's writes 216 bytes per
// kernel.
TEST_F(CuptiReplayTest, RecordingsOfAGpuAreStillUnderstood) {
  const std::filesystem::path folder =
      REPRISE_SOURCE_DIR "/tests/fixtures/cupti";
  if (!std::filesystem::exists(folder))
    GTEST_SKIP() << "no buffer was recorded on a GPU yet (tests/gpu/run "
                    "records some)";
  void* library =
      dlopen(RealCupti(REPRISE_REAL_CUPTI).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    GTEST_SKIP() << "recordings need a libcupti to walk them: none found";
  const auto next =
      reinterpret_cast<Next>(dlsym(library, "cuptiActivityGetNextRecord"));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".rrc") continue;
    Recording recording = ReadRecording(entry.path());
    for (const auto& [name, dur] : Kernels(recording, next)) {
      EXPECT_FALSE(name.empty());
      EXPECT_LT(dur, 60'000'000'000u);
    }
  }
}

}  // namespace
}  // namespace reprise::profiler::testing
