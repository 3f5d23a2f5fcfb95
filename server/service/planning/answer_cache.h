// SPDX-License-Identifier: Apache-2.0
//
// Answers that took a search or a walk of a whole step to make, so that the next
// who looks at the same page has them at once: the trade-off curve of a graph,
// the explanation of a plan. Step graphs never change, and whoever asks makes
// sure that what the answer is about is still stored. Of more than `most_bytes`
// together, those that nobody asked for the longest go first.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace reprise::server {

template <typename Answer>
class AnswerCache {
 public:
  explicit AnswerCache(size_t most_bytes = size_t{32} << 20)
      : most_bytes_(most_bytes) {}

  // Returns the answer to this question; null if it is not kept. Thread-safe.
  std::shared_ptr<const Answer> Find(const std::string& question) {
    const std::lock_guard lock(mutex_);
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->question != question) continue;
      kept_.splice(kept_.begin(), kept_, it);
      return kept_.front().answer;
    }
    return nullptr;
  }

  // Keeps an answer of so many bytes, in the place of an earlier one to the same
  // question; one that is larger than all may be is not kept. Thread-safe.
  void Keep(const std::string& question, Answer answer, size_t bytes) {
    bytes += question.size();
    const std::lock_guard lock(mutex_);
    kept_.remove_if([&](const Kept& one) { return one.question == question; });
    if (bytes > most_bytes_) return;
    kept_.push_front(
        {question, bytes, std::make_shared<const Answer>(std::move(answer))});
    size_t sum = 0;
    for (auto it = kept_.begin(); it != kept_.end();) {
      sum += it->bytes;
      it = sum > most_bytes_ ? kept_.erase(it) : std::next(it);
    }
  }

 private:
  struct Kept {
    std::string question;
    size_t bytes = 0;
    std::shared_ptr<const Answer> answer;
  };

  const size_t most_bytes_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // newest use first
};

}  // namespace reprise::server
