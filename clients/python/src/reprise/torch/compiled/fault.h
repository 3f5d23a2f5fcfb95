// SPDX-License-Identifier: Apache-2.0
//
// Internal errors end here, as those of Python do in internals/guard.py: they
// are reported once, and the step continues with everything kept. Errors that
// are meant for the program (memory running out, a saved tensor that was
// written) pass.
#ifndef REPRISE_TORCH_COMPILED_FAULT_H_
#define REPRISE_TORCH_COMPILED_FAULT_H_

// clang-format off
#include <torch/csrc/python_headers.h>  // before all others
// clang-format on

#include <pybind11/gil.h>

#include <string>

namespace reprise_fast {

// (error) -> bool: it was ours, and is reported.
inline PyObject* python_fault = nullptr;

// What an error says, in a few words.
inline std::string Described(PyObject* error) {
  PyObject* const text = error == nullptr ? nullptr : PyObject_Str(error);
  const char* const said = text == nullptr ? nullptr : PyUnicode_AsUTF8(text);
  std::string found = error == nullptr ? "" : Py_TYPE(error)->tp_name;
  if (said != nullptr && *said != 0) found += std::string(": ") + said;
  Py_XDECREF(text);
  PyErr_Clear();
  return found;
}

// Takes Python's error, where it was ours, and says in `why` what it was.
// false: it is set as before.
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

// The same from code that runs without the interpreter's lock.
inline void Report(const char* what) {
  const pybind11::gil_scoped_acquire held;
  PyErr_SetString(PyExc_RuntimeError, what);
  if (!Reported()) PyErr_Clear();
}

}  // namespace reprise_fast

#endif  // REPRISE_TORCH_COMPILED_FAULT_H_
