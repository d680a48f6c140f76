// Byte streams, as the runtime's sources use them: two virtual functions, and typed shorthands
// that go through Serializer<T>.
#pragma once

#include <cstddef>

namespace tvm {
namespace support {

template <typename T>
struct Serializer;

class Stream {
 public:
  virtual ~Stream() = default;
  // Reads up to `size` bytes; how many there were.
  virtual size_t Read(void* data, size_t size) = 0;
  // Writes `size` bytes; how many went.
  virtual size_t Write(const void* data, size_t size) = 0;

  template <typename T>
  void Write(const T& value);
  template <typename T>
  bool Read(T* value);
  template <typename T>
  void WriteArray(const T* values, size_t count);
  template <typename T>
  bool ReadArray(T* values, size_t count);
};

}  // namespace support
}  // namespace tvm

#include <tvm/support/serializer.h>

namespace tvm {
namespace support {

template <typename T>
void Stream::Write(const T& value) {
  Serializer<T>::Write(this, value);
}

template <typename T>
bool Stream::Read(T* value) {
  return Serializer<T>::Read(this, value);
}

template <typename T>
void Stream::WriteArray(const T* values, size_t count) {
  for (size_t i = 0; i < count; ++i) Write(values[i]);
}

template <typename T>
bool Stream::ReadArray(T* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!Read(values + i)) return false;
  }
  return true;
}

}  // namespace support
}  // namespace tvm
