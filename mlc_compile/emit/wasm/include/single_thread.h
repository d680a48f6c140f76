// Included before every unit: what zig's C++ library leaves out for WASI, where there are no
// threads and files, and the sources name all the same. Locks hold nobody back, files never open.
#pragma once

#include <chrono>
#include <cstdio>
#include <fstream>
#include <istream>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>

// <sys/wait.h> does not exist here, and file_utils wants two macros of it.
#define _SYS_WAIT_H
#define WIFEXITED(status) ((status) == 0)
#define WEXITSTATUS(status) (status)

inline FILE* popen(const char*, const char*) { return nullptr; }
inline int pclose(FILE*) { return -1; }

_LIBCPP_BEGIN_NAMESPACE_STD

#if !_LIBCPP_HAS_THREADS

class mutex {
 public:
  constexpr mutex() noexcept = default;
  mutex(const mutex&) = delete;
  mutex& operator=(const mutex&) = delete;
  void lock() {}
  void unlock() noexcept {}
  bool try_lock() noexcept { return true; }
};

class recursive_mutex : public mutex {};

template <class... Mutexes>
class scoped_lock {
 public:
  explicit scoped_lock(Mutexes&...) {}
  ~scoped_lock() {}  // so that a variable of it is no unused one
};

class condition_variable {
 public:
  void notify_one() noexcept {}
  void notify_all() noexcept {}
  template <class Lock>
  void wait(Lock&) {}
  template <class Lock, class Condition>
  void wait(Lock&, Condition) {}
};

namespace this_thread {
template <class Rep, class Period>
void sleep_for(const chrono::duration<Rep, Period>&) {}
}  // namespace this_thread

#endif  // no threads

#if !_LIBCPP_HAS_FILESYSTEM

template <>
class basic_ifstream<char> : public istream {
 public:
  basic_ifstream() : istream(nullptr) { setstate(failbit); }
  template <class Path>
  explicit basic_ifstream(const Path&, openmode = in) : basic_ifstream() {}
  bool is_open() const { return false; }
  void close() {}
};

template <>
class basic_ofstream<char> : public ostream {
 public:
  basic_ofstream() : ostream(nullptr) { setstate(failbit); }
  template <class Path>
  explicit basic_ofstream(const Path&, openmode = out) : basic_ofstream() {}
  bool is_open() const { return false; }
  void close() {}
};

#endif  // no files

_LIBCPP_END_NAMESPACE_STD
