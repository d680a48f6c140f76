// Tensors inside JSON are base64; no library of ours has JSON with tensors, so there is only
// what makes the sources compile, and says so if it is ever asked.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/support/io.h>

namespace tvm {
namespace support {

class NoBase64 : public Stream {
 public:
  explicit NoBase64(Stream*) {}
  using Stream::Read;
  using Stream::Write;

  size_t Read(void*, size_t) final { return Refuse(); }
  size_t Write(const void*, size_t) final { return Refuse(); }
  void InitPosition() {}
  void Finish() {}

 private:
  static size_t Refuse() {
    TVM_FFI_THROW(RuntimeError) << "tensors in JSON are left out of this runtime";
    return 0;
  }
};

using Base64InStream = NoBase64;
using Base64OutStream = NoBase64;

}  // namespace support
}  // namespace tvm
