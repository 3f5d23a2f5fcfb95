// SPDX-License-Identifier: Apache-2.0
//
// The functions of the Python module, and such made of C++ functions, whose
// arguments and results pybind11 converts. The latter are seldom called: what
// runs for every op takes Python's objects itself.
#ifndef REPRISE_TORCH_COMPILED_BOUND_H_
#define REPRISE_TORCH_COMPILED_BOUND_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>
#include <type_traits>
#include <utility>

// An entry point of the engine: the function itself, but in a build for tests,
// where REPRISE_INJECT names the header that makes it fail.
#ifdef REPRISE_INJECT
#include REPRISE_INJECT
#else
#define REPRISE_ENTRY(name, function) function
#endif

namespace reprise_fast {

// Returns a value in C++. Throws TypeError if Python gave another kind of it.
template <typename T>
T FromPython(PyObject* value) {
  pybind11::detail::make_caster<T> found;
  if (!found.load(value, /*convert=*/true))
    throw torch::TypeError("an argument of a type that is not supported");
  return pybind11::detail::cast_op<T>(std::move(found));
}

// Bound<F>::Call is F as a function that Python calls with a tuple of
// arguments.
template <auto function>
struct Bound;
template <typename Result, typename... Given, Result (*function)(Given...)>
struct Bound<function> {
  static PyObject* Call(PyObject*, PyObject* args) {
    HANDLE_TH_ERRORS
    auto given = FromPython<std::tuple<std::decay_t<Given>...>>(args);
    if constexpr (std::is_void_v<Result>) {
      std::apply(function, std::move(given));
      Py_RETURN_NONE;
    } else {
      return pybind11::detail::object_or_cast(
                 std::apply(function, std::move(given)))
          .release()
          .ptr();
    }
    END_HANDLE_TH_ERRORS
  }
};

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_BOUND_H_
