// SPDX-License-Identifier: Apache-2.0
//
// A 128-bit digest of a tensor's bytes, used to compare a recomputed value with
// the discarded one without keeping the latter.
//
// Eight lanes take eight bytes each in turn: lane = rotate(lane ^ word) * odd.
// For a fixed word this maps lanes one to one, and for a fixed lane it maps
// words one to one, so tensors that differ in a single word always differ in
// one lane. A final mix folds the lanes into 128 bits. Not a cryptographic
// hash.
//
// Elements are read in the order of the strides of another tensor (normally the
// tensor itself). Dense data is read sequentially in one pass. Bytes between
// the elements are not read. Data on a device is copied to the host in windows
// of 16 MiB; nothing is allocated on the device for a dense tensor.
#ifndef REPRISE_TORCH_COMPILED_DIGEST_H_
#define REPRISE_TORCH_COMPILED_DIGEST_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <pybind11/gil.h>
#include <pybind11/pytypes.h>
#include <torch/csrc/python_headers.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "below.h"

namespace reprise_fast {

using Digest = std::array<uint64_t, 2>;

// The digest of a byte sequence, which may arrive in pieces of any length.
class Hash {
 public:
  void Take(const char* bytes, size_t count) {
    total_ += count;
    if (filled_ != 0) {
      const size_t fits = std::min(count, kStripe - filled_);
      std::memcpy(rest_.data() + filled_, bytes, fits);
      filled_ += fits;
      bytes += fits;
      count -= fits;
      if (filled_ < kStripe) return;
      Stripe(rest_.data());
      filled_ = 0;
    }
    for (; count >= kStripe; count -= kStripe, bytes += kStripe) Stripe(bytes);
    std::memcpy(rest_.data(), bytes, count);
    filled_ = count;
  }

  Digest Finish() {
    std::fill(rest_.begin() + static_cast<ptrdiff_t>(filled_), rest_.end(), 0);
    Stripe(rest_.data());
    Digest made = {total_, ~total_};
    for (size_t i = 0; i < lanes_.size(); ++i) {
      made[0] = Mixed(made[0] ^ lanes_[i]);
      made[1] = Mixed(made[1] + lanes_[lanes_.size() - 1 - i]);
    }
    return made;
  }

 private:
  static constexpr size_t kStripe = 64;
  // The golden ratio as a 64-bit fraction; each lane uses an odd multiple of
  // it.
  static constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

  void Stripe(const char* bytes) {
    std::array<uint64_t, 8> words;
    std::memcpy(words.data(), bytes, kStripe);
    for (size_t i = 0; i < lanes_.size(); ++i)
      lanes_[i] = std::rotl(lanes_[i] ^ words[i], 29) * (kOdd * (2 * i + 1));
  }
  static uint64_t Mixed(uint64_t x) {
    x = (x ^ (x >> 32)) * kOdd;
    x = (x ^ (x >> 29)) * (kOdd * 5);
    return x ^ (x >> 32);
  }

  std::array<uint64_t, 8> lanes_ = {1, 2, 3, 4, 5, 6, 7, 8};
  std::array<char, kStripe> rest_ = {};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

// Sizes and strides of a tensor's elements, outermost dimension first, counted
// in elements.
struct Lay {
  std::vector<int64_t> sizes, strides;

  int64_t Span() const {  // from the first element through the last
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      last += (sizes[i] - 1) * strides[i];
    return last + 1;
  }
};

// Returns the layout of the elements of `t` in the order of the strides of
// `like`. Dimensions that are contiguous with each other are merged.
inline Lay LayOf(const at::Tensor& t, const at::Tensor& like) {
  std::vector<size_t> order(static_cast<size_t>(t.dim()));
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return like.strides()[a] > like.strides()[b];
  });
  Lay lay;
  for (const size_t dim : order) {
    const int64_t size = t.sizes()[dim], stride = t.strides()[dim];
    if (size == 1 || (stride == 0 && like.strides()[dim] == 0)) continue;
    if (!lay.sizes.empty() && lay.strides.back() == stride * size) {
      lay.sizes.back() *= size;
      lay.strides.back() = stride;
    } else {
      lay.sizes.push_back(size);
      lay.strides.push_back(stride);
    }
  }
  return lay;
}

// Hashes the elements of `lay` from dimension `dim` on; `item` is the size
// of an element in bytes.
inline void TakeElements(Hash& hash, const char* first, const Lay& lay,
                         size_t dim, int64_t item) {
  if (dim == lay.sizes.size()) {
    hash.Take(first, static_cast<size_t>(item));
    return;
  }
  const int64_t size = lay.sizes[dim], stride = lay.strides[dim];
  if (dim + 1 == lay.sizes.size() && stride == 1) {
    hash.Take(first, static_cast<size_t>(size * item));
    return;
  }
  for (int64_t i = 0; i < size; ++i)
    TakeElements(hash, first + i * stride * item, lay, dim + 1, item);
}

// Hashes elements that are on another device: copies as many of the
// outermost rows at a time as fit in one window.
inline void TakeFromDevice(Hash& hash, const at::Tensor& t, int64_t offset,
                           Lay lay) {
  constexpr int64_t kWindow = int64_t{16} << 20;
  const auto item = static_cast<int64_t>(t.element_size());
  if (lay.Span() * item <= kWindow || lay.sizes.empty()) {
    const at::Tensor flat = t.as_strided({lay.Span()}, {1}, offset).cpu();
    TakeElements(hash, static_cast<const char*>(flat.const_data_ptr()), lay, 0,
                 item);
    return;
  }
  const int64_t size = lay.sizes[0], stride = lay.strides[0];
  Lay inner{{lay.sizes.begin() + 1, lay.sizes.end()},
            {lay.strides.begin() + 1, lay.strides.end()}};
  const int64_t row = std::max(inner.Span(), stride) * item;
  const int64_t rows =
      std::max<int64_t>(1, kWindow / std::max<int64_t>(1, row));
  for (int64_t i = 0; i < size; i += rows) {
    if (rows == 1) {
      TakeFromDevice(hash, t, offset + i * stride, inner);
    } else {
      lay.sizes[0] = std::min(rows, size - i);
      TakeFromDevice(hash, t, offset + i * stride, lay);
    }
  }
}

// Hashes the elements of `t`, in the order of the strides of `like`. Both
// must be strided tensors of the same rank.
inline void TakeAll(Hash& hash, const at::Tensor& t, const at::Tensor& like) {
  if (t.numel() == 0) return;
  const Lay lay = LayOf(t, like);
  if (t.is_cpu()) {
    TakeElements(hash, static_cast<const char*>(t.const_data_ptr()), lay, 0,
                 static_cast<int64_t>(t.element_size()));
  } else {
    const Alone alone;
    TakeFromDevice(hash, t, t.storage_offset(), lay);
  }
}

// Returns the 16 bytes of the digest of a tensor. Throws TypeError unless both
// are strided tensors of the same rank.
inline pybind11::bytes DigestOf(const at::Tensor& t, const at::Tensor& like) {
  TORCH_CHECK_TYPE(t.layout() == at::kStrided && t.dim() == like.dim(),
                   "digest: not two strided tensors of one rank");
  Hash hash;
  {
    const pybind11::gil_scoped_release released;
    TakeAll(hash, t, like);
  }
  const Digest made = hash.Finish();
  return {reinterpret_cast<const char*>(made.data()), sizeof(made)};
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_DIGEST_H_
