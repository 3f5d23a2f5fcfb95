// SPDX-License-Identifier: Apache-2.0
//
// The shortcuts (shortcut.h) as functions of the Python module, so that
// shortcut.py can use them in the Python engine. They raise TypeError for
// arguments that they do not support.
#ifndef REPRISE_TORCH_COMPILED_SHORTCUT_FUNCTIONS_H_
#define REPRISE_TORCH_COMPILED_SHORTCUT_FUNCTIONS_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <utility>

#include "shortcut.h"

namespace reprise_fast {

// Returns the tensor, or nothing for None. Throws TypeError for other objects.
inline std::optional<at::Tensor> TensorOf(PyObject* value) {
  if (value == Py_None) return std::nullopt;
  if (!THPVariable_Check(value)) throw torch::TypeError("not a tensor");
  return THPVariable_Unpack(value);
}

// normalizes(x, weight, bias) -> bool: whether `normalized` supports these.
inline PyObject* PyNormalizes(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *x, *weight, *bias;
  if (!PyArg_ParseTuple(args, "OOO", &x, &weight, &bias)) return nullptr;
  const auto input = TensorOf(x);
  return PyBool_FromLong(input.has_value() &&
                         Normalizes(*input, TensorOf(weight), TensorOf(bias)));
  END_HANDLE_TH_ERRORS
}

// normalized(x, weight, bias, mean, invstd, fused) -> tensor: the output of a
// training batch norm with these statistics.
inline PyObject* PyNormalized(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *x, *weight, *bias, *mean, *invstd;
  int fused = 0;
  if (!PyArg_ParseTuple(args, "OOOOOp", &x, &weight, &bias, &mean, &invstd,
                        &fused))
    return nullptr;
  const auto input = TensorOf(x), m = TensorOf(mean), v = TensorOf(invstd);
  const auto w = TensorOf(weight), b = TensorOf(bias);
  if (!input || !m || !v || !Normalizes(*input, w, b) ||
      !AreStatistics(*input, *m) || !AreStatistics(*input, *v))
    throw torch::TypeError(
        "these tensors do not define a batch norm that can be computed here");
  return THPVariable_Wrap(Normalized(*input, w, b, *m, *v, fused != 0));
  END_HANDLE_TH_ERRORS
}

// is_mask(tensor) -> bool: whether `bits_of` supports the tensor, provided that
// it holds only zeros and ones.
inline PyObject* PyIsMask(PyObject*, PyObject* value) {
  HANDLE_TH_ERRORS
  const auto mask = TensorOf(value);
  return PyBool_FromLong(mask.has_value() && IsMask(*mask));
  END_HANDLE_TH_ERRORS
}

// bits_of(mask) -> uint8 tensor: one bit per element.
inline PyObject* PyBitsOf(PyObject*, PyObject* value) {
  HANDLE_TH_ERRORS
  const auto mask = TensorOf(value);
  at::Tensor bits;
  if (mask && IsMask(*mask)) bits = BitsOf(*mask);
  if (!bits.defined())
    throw torch::TypeError("the mask holds values other than zeros and ones");
  return THPVariable_Wrap(std::move(bits));
  END_HANDLE_TH_ERRORS
}

// spread_bits(bits, mask): writes the elements of a mask from its bits.
inline PyObject* PySpreadBits(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *bits, *value;
  if (!PyArg_ParseTuple(args, "OO", &bits, &value)) return nullptr;
  const auto from = TensorOf(bits), mask = TensorOf(value);
  if (!from || !mask || !IsMask(*mask) || from->scalar_type() != at::kByte ||
      !from->is_contiguous() || from->numel() != (mask->numel() + 7) / 8)
    throw torch::TypeError("the bits do not match the size of the tensor");
  SpreadBits(*from, *mask);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// round_once(double, once): sets whether this torch rounds beta of a batch norm
// once, for double or for float.
inline PyObject* RoundOnce(PyObject*, PyObject* args) {
  int is_double = 0, once = 0;
  if (!PyArg_ParseTuple(args, "pp", &is_double, &once)) return nullptr;
  rounds_once[is_double] = once != 0;
  Py_RETURN_NONE;
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_SHORTCUT_FUNCTIONS_H_
