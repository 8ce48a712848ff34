// Tells ThreadSanitizer how libraries synchronise that Debian ships uninstrumented.
//
// It cannot see the locks, queues and counters of Abseil (abseil.cc) and gRPC (grpc.cc) and the teams of libgomp
// (openmp.cc), so it would call every access that they order a race, in our own code too. Suppressing those would hide
// real races; this library, preloaded into a test, puts itself before the libraries' functions and states what each of
// them promises, then calls the real one. Accesses that nothing orders are found as before: planted_faults proves both.
//
// In a process without ThreadSanitizer (ctest itself, say) it does nothing but forward.
#ifndef KOINE_TESTS_UNIT_TSAN_LIBRARIES_REAL_H_
#define KOINE_TESTS_UNIT_TSAN_LIBRARIES_REAL_H_

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

extern "C" {
__attribute__((weak)) void __tsan_acquire(void* address);
__attribute__((weak)) void __tsan_release(void* address);
}

namespace koine::tsan {

// What was done before a Release of an address is done before what comes after an Acquire of it that follows.
inline void Acquire(const void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(const_cast<void*>(address));
}
inline void Release(const void* address) {
  if (__tsan_release != nullptr) __tsan_release(const_cast<void*>(address));
}

// The library's own function of this (mangled) name.
template <typename Function>
Function Real(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) {
    std::fprintf(stderr, "tsan_libraries: no library has %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

// KOINE_REAL(name, result, arguments...): a member function takes its object as its first argument.
#define KOINE_REAL(name, result, ...)                                          \
  ([] {                                                                        \
    static const auto real = koine::tsan::Real<result (*)(__VA_ARGS__)>(name); \
    return real;                                                               \
  }())

}  // namespace koine::tsan

#endif  // KOINE_TESTS_UNIT_TSAN_LIBRARIES_REAL_H_
