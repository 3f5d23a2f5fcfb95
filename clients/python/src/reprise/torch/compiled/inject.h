// SPDX-License-Identifier: Apache-2.0
//
// Faults for tests, in a build of its own (REPRISE_INJECT): the n-th allocation
// of this library finds no memory, or the n-th call of an entry fails, once or
// from then on. In every other build an entry is the function itself, and there
// is nothing else of it.
#ifndef REPRISE_TORCH_COMPILED_INJECT_H_
#define REPRISE_TORCH_COMPILED_INJECT_H_

#ifndef REPRISE_INJECT

#define REPRISE_ENTRY(name, function) function

#else

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
inline std::atomic<int64_t> allocation = 0;   // the one that fails
inline std::atomic<int64_t> fired = 0;
inline thread_local bool counting = false;  // what counts does not fail
// Under the interpreter's lock.
inline std::map<std::string, int64_t> entries;  // seen
inline std::string entry;                       // the one that fails
inline int64_t call = 0;
inline bool lasting = false;

inline void Allocates() {
  if (!counting && ++allocations == allocation) {
    ++fired;
    throw std::bad_alloc();
  }
}

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

// inject(allocation, entry, call, lasting): which fails; all counts begin anew.
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

// injected() -> (so many have failed, allocations, {entry: calls}).
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

// Of this library alone: it is linked to its own (-Bsymbolic).
void* operator new(std::size_t bytes) {
  reprise_fast::inject::Allocates();
  void* const made = std::malloc(std::max<std::size_t>(1, bytes));
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }

#endif  // REPRISE_INJECT

#endif  // REPRISE_TORCH_COMPILED_INJECT_H_
