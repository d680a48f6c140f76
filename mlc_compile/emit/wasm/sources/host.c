// The border between the C library and the page: of WASI's calls the JavaScript of TVM answers
// eight, and these functions stand in for the rest, so that the library asks for no others.
//
// JavaScript looks at memory through views that are void once it has grown, and the C library
// grows it without a word: whoever hands over an address first says that it may have.
#include <stdint.h>
#include <stdlib.h>

typedef int32_t i32;
typedef int64_t i64;

#define FROM(module, name) __attribute__((import_module(module), import_name(name)))
#define CALL(name) __imported_wasi_snapshot_preview1_##name

FROM("env", "emscripten_notify_memory_growth") void tell_growth(i32 memory);

// Calls that are passed on: name, parameters, arguments.
#define PASS(name, parameters, arguments)                        \
  FROM("wasi_snapshot_preview1", #name) i32 page_##name parameters; \
  i32 CALL(name) parameters {                                    \
    tell_growth(0);                                              \
    return page_##name arguments;                                \
  }

PASS(clock_time_get, (i32 clock, i64 precision, i32 time), (clock, precision, time))
PASS(environ_get, (i32 environ, i32 buffer), (environ, buffer))
PASS(environ_sizes_get, (i32 count, i32 size), (count, size))
PASS(fd_close, (i32 fd), (fd))
PASS(fd_read, (i32 fd, i32 iovs, i32 count, i32 read), (fd, iovs, count, read))
PASS(fd_seek, (i32 fd, i64 offset, i32 whence, i32 at), (fd, offset, whence, at))
PASS(fd_write, (i32 fd, i32 iovs, i32 count, i32 written), (fd, iovs, count, written))

FROM("wasi_snapshot_preview1", "proc_exit") void page_proc_exit(i32 code);
_Noreturn void CALL(proc_exit)(i32 code) {
  page_proc_exit(code);
  __builtin_trap();
}

// Calls that nobody answers: no arguments, no files, no directories, no sockets.
enum { OK = 0, BAD_FD = 8, NOT_SUPPORTED = 52 };
#define ANSWER(name, parameters, code) \
  i32 CALL(name) parameters { return code; }

ANSWER(args_get, (i32 a, i32 b), OK)
ANSWER(clock_res_get, (i32 a, i32 b), NOT_SUPPORTED)
ANSWER(fd_fdstat_get, (i32 a, i32 b), NOT_SUPPORTED)
ANSWER(fd_fdstat_set_flags, (i32 a, i32 b), NOT_SUPPORTED)
ANSWER(fd_filestat_get, (i32 a, i32 b), NOT_SUPPORTED)
ANSWER(fd_prestat_get, (i32 a, i32 b), BAD_FD)
ANSWER(fd_prestat_dir_name, (i32 a, i32 b, i32 c), BAD_FD)
ANSWER(fd_readdir, (i32 a, i32 b, i32 c, i64 d, i32 e), NOT_SUPPORTED)
ANSWER(path_create_directory, (i32 a, i32 b, i32 c), NOT_SUPPORTED)
ANSWER(path_filestat_get, (i32 a, i32 b, i32 c, i32 d, i32 e), NOT_SUPPORTED)
ANSWER(path_open, (i32 a, i32 b, i32 c, i32 d, i32 e, i64 f, i64 g, i32 h, i32 i), NOT_SUPPORTED)
ANSWER(path_remove_directory, (i32 a, i32 b, i32 c), NOT_SUPPORTED)
ANSWER(path_rename, (i32 a, i32 b, i32 c, i32 d, i32 e, i32 f), NOT_SUPPORTED)
ANSWER(path_unlink_file, (i32 a, i32 b, i32 c), NOT_SUPPORTED)
ANSWER(poll_oneoff, (i32 a, i32 b, i32 c, i32 d), NOT_SUPPORTED)
ANSWER(sched_yield, (void), OK)

i32 CALL(args_sizes_get)(i32 count, i32 size) {
  *(i32*)(uintptr_t)count = 0;
  *(i32*)(uintptr_t)size = 0;
  return OK;
}

// Asked for seeds of hash tables alone: the same numbers every time are as good (xorshift).
i32 CALL(random_get)(i32 buffer, i32 size) {
  static uint32_t state = 0x9E3779B9u;
  for (i32 i = 0; i < size; ++i) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    ((uint8_t*)(uintptr_t)buffer)[i] = (uint8_t)state;
  }
  return OK;
}

// Nothing is caught in this runtime: to throw is to stop. TVM logs the error before it throws.
void* __cxa_allocate_exception(unsigned long size) { return malloc(size); }
_Noreturn void __cxa_throw(void* exception, void* type, void* destroy) {
  (void)exception, (void)type, (void)destroy;
  __builtin_trap();
}
