// Op marks in CPython's calling convention. Everything they need from Python
// comes through reprise_python_bind, so no header or library of Python is used.
//
// The function pointers are in ordinary memory: they belong to the process, and
// a forked child has them at the same addresses.
#include <stddef.h>
#include <stdint.h>

#include "profiler/abi_struct.h"
#include "profiler/agent.h"

using namespace reprise::profiler;

namespace {

reprise_python g_python;

void *Fail(void *kind, const char *why) {
  g_python.raise(kind, why);
  return nullptr;
}

// Converts a Python int. Returns false if an exception is set.
bool ToU64(void *object, uint64_t *value) {
  const unsigned long long number = g_python.as_u64(object);
  *value = number;
  return __builtin_expect(number != ~0ull, 1) || g_python.occurred() == nullptr;
}

bool ToU32(void *object, uint32_t *value) {
  uint64_t number;
  if (!ToU64(object, &number)) return false;
  if (number > UINT32_MAX) {
    g_python.raise(g_python.overflow_error,
                   "reprise: name and shapes are ids of reprise_intern, below "
                   "2**32");
    return false;
  }
  *value = static_cast<uint32_t>(number);
  return true;
}

bool ToI64(void *object, int64_t *value) {
  const long long number = g_python.as_i64(object);
  *value = number;
  return __builtin_expect(number != -1, 1) || g_python.occurred() == nullptr;
}

void *None() {
  g_python.retain(g_python.none);
  return g_python.none;
}

}  // namespace

extern "C" {

REPRISE_EXPORT reprise_status
reprise_python_bind(const reprise_python *python) {
  reprise_python given;
  if (!ReadStruct(python, &given)) return REPRISE_EINVAL;
  if (given.as_u64 == nullptr || given.as_i64 == nullptr ||
      given.occurred == nullptr || given.raise == nullptr ||
      given.retain == nullptr || given.none == nullptr ||
      given.type_error == nullptr || given.overflow_error == nullptr)
    return REPRISE_EINVAL;
  g_python = given;
  return REPRISE_OK;
}

REPRISE_EXPORT void *reprise_python_op_begin(void *, void *const *arguments,
                                             ptrdiff_t n) {
  if (n < 1 || n > 6)
    return Fail(g_python.type_error,
                "reprise: op_begin(op, name=0, shapes=0, parent=0, seq_nr=-1, "
                "forward_thread=0)");
  uint64_t op, parent = 0, forward_thread = 0;
  uint32_t name = 0, shapes = 0;
  int64_t seq_nr = -1;
  if (!ToU64(arguments[0], &op) || (n > 1 && !ToU32(arguments[1], &name)) ||
      (n > 2 && !ToU32(arguments[2], &shapes)) ||
      (n > 3 && !ToU64(arguments[3], &parent)) ||
      (n > 4 && !ToI64(arguments[4], &seq_nr)) ||
      (n > 5 && !ToU64(arguments[5], &forward_thread)))
    return nullptr;
  reprise_op_begin(op, name, shapes, parent, seq_nr, forward_thread);
  return None();
}

REPRISE_EXPORT void *reprise_python_op_end(void *, void *op) {
  uint64_t id;
  if (!ToU64(op, &id)) return nullptr;
  reprise_op_end(id);
  return None();
}

REPRISE_EXPORT void *reprise_python_at(void *, void *op_plus_one) {
  uint64_t at;
  if (!ToU64(op_plus_one, &at)) return nullptr;
  reprise_at(at);
  return None();
}

}  // extern "C"
