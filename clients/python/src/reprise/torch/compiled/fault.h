// SPDX-License-Identifier: Apache-2.0
//
// Where internal errors end in C++, as internals/guard.py does in Python: each
// is reported once, and the step continues without discarding anything. Errors
// that are meant for the program pass through: out of memory, or a saved tensor
// that was modified in place.
#ifndef REPRISE_TORCH_COMPILED_FAULT_H_
#define REPRISE_TORCH_COMPILED_FAULT_H_

#include <pybind11/gil.h>
#include <torch/csrc/python_headers.h>

#include <string>

namespace reprise_fast {

// guard.caught(error) -> bool: reports an internal error and returns True;
// returns False for an error that is meant for the program.
inline PyObject* python_fault = nullptr;

// Returns the type and message of a Python exception, and clears any error that
// is set.
inline std::string Described(PyObject* error) {
  PyObject* const text = error == nullptr ? nullptr : PyObject_Str(error);
  const char* const said = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
  std::string found = error == nullptr ? "" : Py_TYPE(error)->tp_name;
  if (said != nullptr && *said != 0) found += std::string(": ") + said;
  Py_XDECREF(text);
  PyErr_Clear();
  return found;
}

// Reports and clears the pending Python error if it is an internal one, and
// stores its description in `why`. Otherwise leaves the error set and returns
// false.
inline bool Reported(std::string* why = nullptr) {
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace != nullptr) PyException_SetTraceback(error, trace);
  PyObject* const ours =
      PyObject_CallFunctionObjArgs(python_fault, error, nullptr);
  const bool reported = ours == Py_True;
  Py_XDECREF(ours);
  PyErr_Clear();
  if (!reported) {
    PyErr_Restore(type, error, trace);
    return false;
  }
  if (why != nullptr) *why = Described(error);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(trace);
  return true;
}

// Reports an internal error, for code that runs without the GIL.
inline void Report(const char* what) {
  const pybind11::gil_scoped_acquire held;
  PyErr_SetString(PyExc_RuntimeError, what);
  if (!Reported()) PyErr_Clear();
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_FAULT_H_
