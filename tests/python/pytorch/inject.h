// SPDX-License-Identifier: Apache-2.0
//
// Fault injection into the native engine (compiled/bound.h): the n-th
// allocation of the library throws bad_alloc, or the n-th call of an entry
// point fails, once or from then on.
#pragma once

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <new>
#include <string>

namespace reprise_fast::inject {

inline std::atomic<int64_t> allocations = 0;  // seen
inline std::atomic<int64_t> allocation = 0;   // the one to fail; 0: none
inline std::atomic<int64_t> fired = 0;
inline thread_local bool counting = false;  // set while we allocate
// Protected by the GIL.
inline std::map<std::string, int64_t> entries;  // calls seen
inline std::string entry;                       // the one to fail
inline int64_t call = 0;
inline bool lasting = false;

// Counts an allocation, and throws if it is the one to fail.
inline void Allocates() {
  if (!counting && ++allocations == allocation) {
    ++fired;
    throw std::bad_alloc();
  }
}

// Counts a call of an entry point. Sets a Python error and returns true if this
// call is to fail.
inline bool Fails(const char* name) {
  counting = true;
  const int64_t seen = ++entries[name];
  counting = false;
  if (entry != name || seen < call || (seen > call && !lasting)) return false;
  ++fired;
  PyErr_Format(PyExc_RuntimeError, "injected into %s", name);
  return true;
}

template <size_t N>
struct Name {
  // NOLINTNEXTLINE: made of a literal
  constexpr Name(const char (&text)[N]) { std::copy_n(text, N, letters); }
  char letters[N];
};

template <Name name, auto function>
struct Entry;
template <Name name, typename... Of, PyObject* (*function)(Of...)>
struct Entry<name, function> {
  static PyObject* Call(Of... given) {
    return Fails(name.letters) ? nullptr : function(given...);
  }
};

// inject(allocation, entry, call, lasting): sets what fails and resets all
// counts.
inline PyObject* Inject(PyObject*, PyObject* args) {
  long long at = 0, nth = 0;
  const char* name = nullptr;
  int stays = 0;
  if (!PyArg_ParseTuple(args, "LsLp", &at, &name, &nth, &stays)) return nullptr;
  entries.clear();
  entry = name;
  call = nth;
  lasting = stays != 0;
  fired = allocations = 0;
  allocation = at;
  Py_RETURN_NONE;
}

// injected() -> (failures, allocations, {entry: calls}), since `inject`.
inline PyObject* Injected(PyObject*, PyObject*) {
  PyObject* const calls = PyDict_New();
  for (const auto& [name, count] : entries) {
    PyObject* const number = PyLong_FromLongLong(count);
    PyDict_SetItemString(calls, name.c_str(), number);
    Py_DECREF(number);
  }
  return Py_BuildValue("LLN", static_cast<long long>(fired),
                       static_cast<long long>(allocations), calls);
}

}  // namespace reprise_fast::inject

#define REPRISE_ENTRY(name, function) \
  (reprise_fast::inject::Entry<name, &function>::Call)

// Replaces the operator for this library only: it is linked with -Bsymbolic.
void* operator new(std::size_t bytes) {
  reprise_fast::inject::Allocates();
  void* const made = std::malloc(std::max<std::size_t>(1, bytes));
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }
