// Streams over bytes in memory.
#pragma once

#include <tvm/ffi/string.h>
#include <tvm/support/io.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace tvm {
namespace support {

// Reads bytes that somebody else keeps.
class BytesInStream : public Stream {
 public:
  BytesInStream(const char* data, size_t size) : at_(data), left_(size) {}
  explicit BytesInStream(const std::string& bytes) : BytesInStream(bytes.data(), bytes.size()) {}
  explicit BytesInStream(const ffi::Bytes& bytes) : BytesInStream(bytes.data(), bytes.size()) {}
  using Stream::Read;
  using Stream::Write;

  size_t Read(void* data, size_t size) final {
    size_t count = std::min(size, left_);
    if (count != 0) std::memcpy(data, at_, count);
    at_ += count;
    left_ -= count;
    return count;
  }
  size_t Write(const void*, size_t) final { return 0; }

 private:
  const char* at_;
  size_t left_;
};

// Appends to a string that somebody else keeps.
class BytesOutStream : public Stream {
 public:
  explicit BytesOutStream(std::string* bytes) : bytes_(bytes) {}
  using Stream::Read;
  using Stream::Write;

  size_t Read(void*, size_t) final { return 0; }
  size_t Write(const void* data, size_t size) final {
    bytes_->append(static_cast<const char*>(data), size);
    return size;
  }

 private:
  std::string* bytes_;
};

}  // namespace support
}  // namespace tvm
