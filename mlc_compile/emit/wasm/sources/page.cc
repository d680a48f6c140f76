// What the page calls to move bytes and functions across, beside TVM's C interface.
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/error.h>

#include <cstddef>
#include <cstdint>
#include <string>

extern "C" {

// The page's: to call a JavaScript function, and to let go of one.
int TVMFFIWasmSafeCall(void* self, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result);
void TVMFFIWasmFunctionDeleter(void* self);

void* TVMWasmAllocSpace(int size) { return ::operator new(static_cast<size_t>(size)); }

void TVMWasmFreeSpace(void* space) { ::operator delete(space); }

int TVMFFIWasmFunctionCreate(void* self, TVMFFIObjectHandle* out) {
  return TVMFFIFunctionCreate(self, TVMFFIWasmSafeCall, TVMFFIWasmFunctionDeleter, out);
}

// Valid until it is called again.
const char* TVMFFIWasmGetLastError() {
  static std::string told;
  told = tvm::ffi::details::MoveFromSafeCallRaised().what();
  return told.c_str();
}

}  // extern "C"
